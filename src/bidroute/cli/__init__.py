"""The command line: `bidroute compare`, `explain`, `bench`, `worker` and `replay`."""

from bidroute.cli.app import main

__all__ = ["main"]
