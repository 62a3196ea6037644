"""The command line: `bidroute compare`, `bidroute explain` and `bidroute bench`."""

from bidroute.cli.app import main

__all__ = ["main"]
