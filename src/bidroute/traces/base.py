"""The contract of a trace format: how to recognise it, split it into records, and read one record.

Adding a format takes one file with one class, and its line in `formats.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

Row = tuple[float, int, int]
"""Arrival time in seconds (from any origin), prompt tokens, output tokens."""


class BrokenFileError(ValueError):
    """Nothing from record `number` on can be read."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a format may need beside the file.

    `columns` maps `time`, `prompt` and `output` to column names (generic CSV). `rate_per_s` and `seed` make the
    arrivals of formats without times; `tokenizer` is the path of a `tokenizer.json` for formats with texts.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    rate_per_s: float = 10.0
    seed: int = 0
    tokenizer: Path | None = None


class TraceFormat(ABC):
    """Reads one file: the loader makes an instance per file, then calls `records` once and `row` per record."""

    name: ClassVar[str]
    unit: ClassVar[str] = "line"  # what a record's number counts, for error messages

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    @classmethod
    @abstractmethod
    def recognises(cls, head: str) -> bool:
        """Whether a file that begins with `head` (its first 64 KiB) is of this format."""

    @abstractmethod
    def records(self, stream: TextIO) -> Iterator[tuple[int, Any]]:
        """Number and content of each record. A BrokenFileError ends the reading."""

    @abstractmethod
    def row(self, record: Any) -> Row:
        """Read one record. A ValueError says what is wrong with it; the loader adds file and line."""
