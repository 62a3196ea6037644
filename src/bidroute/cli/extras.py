"""Commands that need an extra say so in one line where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from bidroute.errors import ConfigError

SERVE_PACKAGES = ("aiohttp", "prometheus_client")  # uvloop is not there on Windows


def require_serve(command: str) -> None:
    """Raise ConfigError when what the extra `serve` brings is missing."""
    missing = [package for package in SERVE_PACKAGES if find_spec(package) is None]
    if missing:
        raise ConfigError(f"{command} needs {', '.join(missing)}; run: pip install 'bidroute[serve]'")
