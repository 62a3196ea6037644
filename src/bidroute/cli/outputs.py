"""What commands write: the console that tables fit, the files asked for, and the command as it was typed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console

from bidroute.errors import ConfigError
from bidroute.report import check_writable

TABLE_WIDTH = 100


def output_console() -> Console:
    """Where tables are printed: no wider than they are designed for, and always that wide into a file."""
    console = Console(highlight=False)
    console.width = min(TABLE_WIDTH, console.width) if console.is_terminal else TABLE_WIDTH
    return console


def check_outputs(trace: str, outputs: dict[str, Path | None]) -> None:
    """Raise ConfigError when an output could not be written, or would replace the trace or another output."""
    taken = {Path(trace).resolve(): "--trace"}
    for option, path in outputs.items():
        if path is None:
            continue
        check_writable(path)
        other = taken.setdefault(path.resolve(), option)
        if other != option and (path.is_file() or not path.exists()):
            raise ConfigError(f"{other} and {option} are both {path}; expected different files: give one another name")


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join([Path(sys.argv[0]).name or "bidroute", *sys.argv[1:]])
