"""Any CSV with a time, a prompt length and an output length: columns named by the user, or guessed by alias."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, TextIO

from bidroute.traces.base import BrokenFileError
from bidroute.traces.csv_format import CsvFormat, listed, numbered_rows, split_header
from bidroute.traces.fields import TICKS_PER_S, clock_ticks, time_s

TIME_ALIASES = (
    "arrival_s",
    "arrival_time_s",
    "arrival_time",
    "arrived_at",
    "arrival",
    "timestamp_s",
    "timestamp",
    "time_s",
    "time",
    "start_time",
    "arrival_ms",
    "arrival_time_ms",
    "timestamp_ms",
    "time_ms",
)
PROMPT_ALIASES = (
    "prompt_tokens",
    "prompt_length",
    "prompt_len",
    "input_tokens",
    "input_length",
    "input_len",
    "num_prefill_tokens",
    "prefill_tokens",
    "context_tokens",
    "request_tokens",
    "isl",
)
OUTPUT_ALIASES = (
    "output_tokens",
    "output_length",
    "output_len",
    "completion_tokens",
    "generated_tokens",
    "num_decode_tokens",
    "decode_tokens",
    "response_tokens",
    "osl",
)
_ALIASES = {"time": TIME_ALIASES, "prompt": PROMPT_ALIASES, "output": OUTPUT_ALIASES}
_DELIMITERS = ",;\t|"


class GenericCsv(CsvFormat):
    """Separated by commas, semicolons, tabs or bars. Times are seconds, milliseconds (`…_ms`), or dates."""

    name: ClassVar[str] = "csv"

    @classmethod
    def recognises(cls, head: str) -> bool:
        """A first line with several columns, one of them known by an alias."""
        line = head.partition("\n")[0]
        names = [_plain(name) for name in split_header(line, _delimiter(line))]
        return len(names) >= 3 and any(alias in names for aliases in _ALIASES.values() for alias in aliases)

    def records(self, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
        """The rows below the header."""
        header = stream.readline()
        delimiter = _delimiter(header)
        self.bind(split_header(header, delimiter))
        return numbered_rows(stream, delimiter)

    def bind(self, names: list[str]) -> None:
        """Take the user's columns where named, else the first alias that the header has."""
        chosen = [self._find(part, names) for part in ("time", "prompt", "output")]
        self._names = (names[chosen[0]], names[chosen[1]], names[chosen[2]])
        self._indexes = tuple(chosen)
        self._fields = len(names)
        self._per_s = 1e3 if self._names[0].endswith("_ms") else 1.0
        self._first_ticks: int | None = None

    def time(self, text: str) -> float:
        """Seconds; from the first row on where the column holds dates."""
        if "-" not in text[1:] or "e-" in text.lower():
            return time_s(text, self._names[0]) / self._per_s
        ticks = clock_ticks(text, self._names[0])
        if self._first_ticks is None:
            self._first_ticks = ticks
        return (ticks - self._first_ticks) / TICKS_PER_S

    def _find(self, part: str, names: list[str]) -> int:
        wanted = self.options.columns.get(part)
        header = listed(names)
        if wanted is not None:
            if wanted.strip().lower() not in names:
                raise BrokenFileError(1, f"column {wanted!r} ({part}) is missing; the header has: {header}")
            return names.index(wanted.strip().lower())
        plain = [_plain(name) for name in names]
        for alias in _ALIASES[part]:
            if alias in plain:
                return plain.index(alias)
        raise BrokenFileError(
            1, f"no {part} column; the header has: {header}; expected one of {', '.join(_ALIASES[part])}, or name it"
        )


def _plain(name: str) -> str:
    """`Prompt Tokens`, `prompt-tokens` and `prompt_tokens` are the same."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)
