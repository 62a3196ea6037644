"""The command line: `bidroute compare`, `explain`, `ladder`, `robustness`, `bench`, `worker`, `replay` and `demo-live`."""

from bidroute.cli.app import main

__all__ = ["main"]
