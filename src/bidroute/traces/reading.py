"""Reading a trace file: the loop that all formats share, with its account of bad rows."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from bidroute.errors import TraceError
from bidroute.traces.base import BrokenFileError, ReadOptions, TraceFormat
from bidroute.traces.formats import detect_format
from bidroute.traces.workload import Workload

_HEAD_BYTES = 65_536


@dataclass(slots=True)
class _Columns:
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    skipped: int = 0
    first_reason: str = ""

    def skip(self, reason: str) -> None:
        self.first_reason = self.first_reason or reason
        self.skipped += 1

    def workload(self, path: Path) -> Workload:
        if not self.arrival_s:
            bad = f"{self.skipped} bad rows, the first: {self.first_reason}" if self.skipped else "the file has none"
            raise TraceError(f"{path}: no requests: {bad}; expected at least one")
        arrival_s = np.array(self.arrival_s, dtype=np.float64)
        return Workload(
            path.stem,
            arrival_s - arrival_s[0],
            np.array(self.prompt_tokens, dtype=np.int64),
            np.array(self.output_tokens, dtype=np.int64),
            self.skipped,
        )


def read_file(
    path: Path,
    options: ReadOptions,
    *,
    kind: type[TraceFormat] | None = None,
    requests: int | None = None,
    skip_bad_rows: bool = False,
) -> Workload:
    """Read up to `requests` rows; `kind` overrides the detection of the format.

    A bad row raises TraceError with file, line and reason, or is counted where they are skipped. Arrivals are
    shifted so that the first is 0.
    """
    head = _head(path)
    trace_format = (kind or detect_format(head, str(path)))(options)
    try:
        # Bytes that are not UTF-8 become surrogates: they spoil the row that needs them, not the file.
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as stream:
            return _collect(path, trace_format, stream, requests, skip_bad_rows).workload(path)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; expected a readable trace file") from None


def _collect(
    path: Path, trace_format: TraceFormat, stream: TextIO, requests: int | None, skip_bad_rows: bool
) -> _Columns:
    columns, last_s = _Columns(), -math.inf
    try:
        for number, record in trace_format.records(stream):
            try:
                arrival_s, prompt_tokens, output_tokens = trace_format.row(record)
                _check(arrival_s, last_s, prompt_tokens, output_tokens)
            except ValueError as reason:
                columns.skip(f"{trace_format.unit} {number}: {_printable(str(reason))}")
                if skip_bad_rows:
                    continue
                raise TraceError(f"{path}, {columns.first_reason} (or skip bad rows: --skip-bad-rows)") from None
            last_s = arrival_s
            columns.arrival_s.append(arrival_s)
            columns.prompt_tokens.append(prompt_tokens)
            columns.output_tokens.append(output_tokens)
            if len(columns.arrival_s) == requests:
                break
    except BrokenFileError as reason:
        raise TraceError(f"{path}, {trace_format.unit} {reason.number}: {_printable(str(reason))}") from None
    return columns


def _printable(reason: str) -> str:
    """What a file holds must not break the terminal that shows it."""
    return reason if reason.isprintable() else reason.encode("unicode_escape").decode()


def _check(arrival_s: float, last_s: float, prompt_tokens: int, output_tokens: int) -> None:
    """What no format may let pass; most say it better themselves."""
    if not last_s <= arrival_s < math.inf:
        raise ValueError(
            f"time {arrival_s:.7g} s is before that of the row ahead, {last_s:.7g} s; sort the trace by time"
            if arrival_s < last_s
            else f"time is {arrival_s}; expected a finite number"
        )
    if prompt_tokens < 0 or output_tokens < 1:
        raise ValueError(f"{prompt_tokens} prompt and {output_tokens} output tokens; expected 0 and 1, or more")


def _head(path: Path) -> str:
    if not path.exists():
        raise TraceError(f"{path}: no such file; expected a trace file or builtin:NAME")
    if path.is_dir():
        raise TraceError(f"{path}: is a directory; expected a trace file")
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; expected a readable trace file") from None
    if not head.strip():
        raise TraceError(f"{path}: the file is empty; expected at least one request")
    if b"\0" in head:
        raise TraceError(f"{path}: not UTF-8 text (it has NUL bytes); expected a CSV or JSON trace, in UTF-8")
    text = head.decode("utf-8-sig", errors="surrogateescape")
    return text.replace("\r\n", "\n").replace("\r", "\n")
