"""Writing report files: whole or not at all, and refused early where they cannot be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from bidroute.errors import ConfigError


def check_writable(path: Path) -> None:
    """Raise ConfigError when a file at `path` could not be written; leaves nothing behind."""
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; give the name of a file")
    try:
        if _is_special(path):
            with path.open("w"):
                return
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ConfigError(f"cannot write {path}: {reason}; give a path in a folder that you can write to") from None


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Open a text file that appears at `path` complete when the block ends well, and not at all otherwise."""
    check_writable(path)
    if _is_special(path):
        with path.open("w", encoding="utf-8", newline="") as stream:
            yield stream
        return
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
        _allow_reading(temporary)
        Path(temporary).replace(path)
    except OSError as problem:
        _remove(temporary)
        raise ConfigError(f"cannot write {path}: {problem.strerror or problem}; free some space there") from None
    except BaseException:
        _remove(temporary)
        raise


def _is_special(path: Path) -> bool:
    """Whether this is a pipe or a terminal, such as /dev/stdout: to be written to, never replaced."""
    return path.exists() and not path.is_file()


def _allow_reading(path: str) -> None:
    """Give the file the permissions of an ordinary new file (temporary ones are private)."""
    mask = os.umask(0)
    os.umask(mask)
    Path(path).chmod(0o666 & ~mask)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        Path(path).unlink()
