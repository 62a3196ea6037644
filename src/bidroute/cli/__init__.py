"""The command line: `bidroute compare` and `bidroute explain`."""

from bidroute.cli.app import main

__all__ = ["main"]
