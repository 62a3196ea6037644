import os
import shutil
import subprocess
import sys

import pytest

from bidroute import _kernels

CONSTANTS = "STEP = {step}\n"
INNER = """
from tiny._kernels import kernel
from tiny.layout import STEP

@kernel
def inner(x):
    return x + STEP
"""
OUTER = """
from tiny._kernels import kernel
from tiny.inner import inner

@kernel
def outer(x):
    return {factor} * inner(x)
"""
MAIN = "from tiny.outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"


@pytest.fixture
def package(tmp_path):
    """A package of two kernels and a constant, each in a file of its own."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(_kernels.__file__, folder)
    (folder / "inner.py").write_text(INNER)
    (folder / "outer.py").write_text(OUTER.format(factor=10))
    (folder / "layout.py").write_text(CONSTANTS.format(step=1))
    return folder


def run(package, main=MAIN, **variables):
    """What `outer(1)` is in a fresh process, and how many times it came from the cache."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": "", **variables}
    output = subprocess.run(
        [sys.executable, "-B", "-c", main], capture_output=True, text=True, env=environment, check=True
    ).stdout
    return tuple(int(word) for word in output.split())


def test_a_kernel_comes_from_the_cache_until_a_file_that_it_depends_on_changes(package):
    assert run(package) == (20, 0)
    assert run(package) == (20, 1)
    (package / "layout.py").write_text(CONSTANTS.format(step=5))
    assert run(package) == (60, 0)
    assert run(package) == (60, 1)


def test_a_cache_that_names_a_class_which_is_gone_is_not_read(package):
    """Kernels that take named tuples are indexed by their classes, which a newer version may have renamed."""
    pair = "from typing import NamedTuple\n\nclass {name}(NamedTuple):\n    x: int\n"
    (package / "layout.py").write_text(CONSTANTS.format(step=1) + pair.format(name="Pair"))
    (package / "outer.py").write_text(
        OUTER.format(factor=10).replace("inner(x)", "inner(x.x)") + "\nfrom tiny.layout import Pair as Given\n"
    )
    main = MAIN.replace("outer(1)", "outer(Given(1))").replace("import outer;", "import outer, Given;")
    assert run(package, main) == (20, 0)
    (package / "layout.py").write_text(CONSTANTS.format(step=1) + pair.format(name="Couple"))
    source = (package / "outer.py").read_text()
    (package / "outer.py").write_text(source.replace("Pair as", "Couple as"))
    assert run(package, main) == (20, 0)
    assert run(package, main) == (20, 1)


def test_a_touched_file_with_the_same_contents_changes_nothing(package):
    run(package)
    os.utime(package / "outer.py", (1, 1))
    assert run(package) == (20, 1)


def test_without_a_place_for_a_cache_it_compiles_anyway(package, tmp_path):
    no_folder = tmp_path / "file"
    no_folder.touch()
    (package / "__pycache__").touch()  # a file where the folder should be
    assert run(package, HOME=str(no_folder), XDG_CACHE_HOME=str(no_folder)) == (20, 0)


def test_stamps_follow_imports():
    root = _kernels._ROOT
    stamp = _kernels.source_stamp(root / "simulator" / "fleet_kernels.py")
    assert stamp == _kernels.source_stamp(root / "simulator" / "fleet_kernels.py")
    assert stamp != _kernels.source_stamp(root / "simulator" / "engine_kernels.py")
