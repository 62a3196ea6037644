"""Mooncake's public traces: one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, TextIO

import msgspec

from bidroute.traces.base import ReadOptions, Row, TraceFormat
from bidroute.traces.fields import LARGEST_TOKENS


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int


class MooncakeTrace(TraceFormat):
    """`timestamp` in ms, `input_length`, `output_length`; other keys (`hash_ids`) are passed over."""

    name: ClassVar[str] = "mooncake"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._decode = msgspec.json.Decoder(_Line).decode

    @classmethod
    def recognises(cls, head: str) -> bool:
        """It begins with an object."""
        return head.lstrip().startswith("{")

    def records(self, stream: TextIO) -> Iterator[tuple[int, str]]:
        """The lines that are not blank."""
        return ((number, line) for number, line in enumerate(stream, start=1) if not line.isspace())

    def row(self, record: str) -> Row:
        """One object."""
        try:
            line = self._decode(record)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise ValueError(f"{error}; expected an object with timestamp, input_length, output_length") from None
        if line.timestamp < 0:
            raise ValueError(f"timestamp is {line.timestamp:g}; expected a time of 0 or more")
        _check(line.input_length, "input_length", 0)
        _check(line.output_length, "output_length", 1)
        return line.timestamp / 1e3, line.input_length, line.output_length


def _check(tokens: int, key: str, least: int) -> None:
    if not least <= tokens <= LARGEST_TOKENS:
        raise ValueError(f"{key} is {tokens}; expected {least} or more tokens, at most {LARGEST_TOKENS}")
