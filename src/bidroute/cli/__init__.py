"""The command line: `bidroute compare`, `ladder`, `robustness` and the others, one file each."""

from bidroute.cli.app import main

__all__ = ["main"]
