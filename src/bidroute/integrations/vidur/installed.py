"""Is the Vidur that these modules were written against installed?"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from bidroute.errors import ConfigError

VIDUR_VERSION = "0.0.26"


def require_vidur() -> None:
    """Raise ConfigError unless vidur is there, in the version whose private fields the contract test guards."""
    try:
        found = version("vidur")
    except PackageNotFoundError:
        raise ConfigError("vidur is not installed; expected vidur: pip install 'bidroute[vidur]'") from None
    if found != VIDUR_VERSION:
        raise ConfigError(f"vidur {found} is installed; expected {VIDUR_VERSION}: pip install 'bidroute[vidur]'")
