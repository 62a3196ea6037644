"""Nothing but the plug-in needs Vidur, and where it is missing the plug-in says so."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

ROOMS = "bidroute.cli.app, bidroute.experiments, bidroute.simulator, bidroute.router.serve, bidroute.integrations.vidur"


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=120)


def test_no_other_room_imports_it() -> None:
    code = f"import sys, {ROOMS}; sys.exit('vidur' in sys.modules or 'wandb' in sys.modules)"
    assert _run("-c", code).returncode == 0


@pytest.mark.skipif(find_spec("vidur") is not None, reason="vidur is installed")
def test_what_to_install_is_said_on_one_line() -> None:
    done = _run("-m", "bidroute.integrations.vidur", "--help")
    assert done.returncode == 2
    assert done.stderr == "bidroute: vidur is not installed; expected vidur: pip install 'bidroute[vidur]'\n"
