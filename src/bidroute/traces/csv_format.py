"""What the CSV formats share: a header names the columns, and each row has its three fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import ClassVar, TextIO

from bidroute.traces.base import BrokenFileError, Row, TraceFormat
from bidroute.traces.fields import time_s, token_count


class CsvFormat(TraceFormat):
    """A CSV file whose header has the three columns named by the class, anywhere and in any case."""

    time_column: ClassVar[str]
    prompt_column: ClassVar[str]
    output_column: ClassVar[str]

    @classmethod
    def recognises(cls, head: str) -> bool:
        """Two of the three columns are enough: then the third is missed by name."""
        names = split_header(head.partition("\n")[0], ",")
        wanted = (cls.time_column, cls.prompt_column, cls.output_column)
        return sum(column.lower() in names for column in wanted) >= 2

    def records(self, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
        """The rows below the header; empty lines are passed over."""
        header = stream.readline()
        self.bind(split_header(header, ","))
        return numbered_rows(stream, ",")

    def bind(self, names: list[str]) -> None:
        """Find the columns in the header."""
        self._names = (self.time_column, self.prompt_column, self.output_column)
        for column in self._names:
            if column.lower() not in names:
                raise BrokenFileError(1, f"column {column} is missing; the header has: {listed(names)}")
        self._indexes = tuple(names.index(column.lower()) for column in self._names)
        self._fields = len(names)

    def row(self, record: list[str]) -> Row:
        """The three fields as numbers."""
        time_at, prompt_at, output_at = self._indexes
        if len(record) <= max(self._indexes):
            raise ValueError(f"{len(record)} fields; expected {self._fields}")
        return (
            self.time(record[time_at]),
            token_count(record[prompt_at], self._names[1], least=0),
            token_count(record[output_at], self._names[2], least=1),
        )

    def time(self, text: str) -> float:
        """The arrival time in seconds."""
        return time_s(text, self._names[0])


def split_header(line: str, delimiter: str) -> list[str]:
    """Column names in lower case; none where the line is not CSV."""
    try:
        names = next(csv.reader([line.strip()], delimiter=delimiter), [])
    except csv.Error:
        names = []
    return [name.strip().lower() for name in names]


def listed(names: list[str]) -> str:
    """Column names for a message, cut where they are many."""
    text = ", ".join(names)
    return text if len(text) <= 200 else text[:200] + "…"


def numbered_rows(stream: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number in the file and fields of each row below a header of one line."""
    reader = csv.reader(stream, delimiter=delimiter)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num + 1, fields
    except csv.Error as error:
        raise BrokenFileError(reader.line_num + 1, f"not CSV: {error}") from None
