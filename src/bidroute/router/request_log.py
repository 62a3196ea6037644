"""Structured logs: one JSON object a line, with ids, times and counts, and never what was asked or answered."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

import msgspec

REQUESTS = logging.getLogger("bidroute.requests")
_ROOT = "bidroute"
_root = logging.getLogger(_ROOT)
_REQUEST = '{"time":"%s","level":"info","logger":"bidroute.requests","event":"request",'
_TOGETHER_S = 0.05  # lines of so long a time are written in one piece


class RequestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said of a request at its end, in seconds from its arrival; tenant and prefill only where there is one."""

    request_id: str
    ticket: int
    path: str
    outcome: str
    status: int
    worker: str | None
    attempts: list[str]
    released_after_s: float | None
    first_output_after_s: float | None
    total_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    tenant: str = ""
    prefill_worker: str | None = None
    prefilled_after_s: float | None = None


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Of an exception only its type and place are shown: its text may be a client's."""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._text = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": self.stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["place"] = _place(record.exc_info[2])
        return msgspec.json.encode(line, enc_hook=str).decode()

    def stamp(self, at_s: float) -> str:
        """A time, as it is written."""
        second = int(at_s)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((at_s - second) * 1000.0):03d}Z"


class LineWriter(logging.Handler):
    """Lines to standard error: what the event loop logs within a moment goes out together, all else at once.

    A write and a flush for each request would be a tenth of what a request costs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines_of = JsonLines()
        self.setFormatter(self._lines_of)
        self._lines: list[str] = []
        self._due = False

    def emit(self, record: logging.LogRecord) -> None:
        """Take in one record; a warning takes everything before it along."""
        try:
            self._lines.append(self.format(record))
            if record.levelno >= logging.WARNING or not (self._due or self._soon()):
                self.flush()
        except Exception:
            self.handleError(record)

    def request(self, line: RequestLine) -> None:
        """Take in what is said of a request, without the detour of a record."""
        said = msgspec.json.encode(line).decode()
        self._lines.append(_REQUEST % self._lines_of.stamp(time.time()) + said[1:])
        if not (self._due or self._soon()):
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        self.acquire()
        try:
            self._due = False
            if self._lines:
                lines, self._lines = self._lines, []
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()
        finally:
            self.release()

    def _soon(self) -> bool:
        """Have the loop write; False where none runs in this thread."""
        try:
            asyncio.get_running_loop().call_later(_TOGETHER_S, self.flush)
        except RuntimeError:
            return False
        self._due = True
        return True


def write_logs(level: str = "info") -> None:
    """Write this process's logs to standard error as JSON lines, of which none tells threads or source lines."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = LineWriter()
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def log_request(line: RequestLine) -> None:
    """Say what became of a request; through Python's logging unless this process writes its logs itself."""
    handlers = _root.handlers
    if handlers and isinstance(handlers[0], LineWriter):
        handlers[0].request(line)
    else:
        REQUESTS.info("request", extra={"fields": msgspec.to_builtins(line)})


def _place(traceback: Any) -> str:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
