"""Structured logs: one JSON object a line, with ids, times and counts, and never what was asked or answered."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

REQUESTS = logging.getLogger("bidroute.requests")
_ROOT = "bidroute"


class JsonLines(logging.Formatter):
    """A record as one line of JSON. Of an exception only its type and place are shown: its text may be a client's."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            line["place"] = _place(record.exc_info[2])
        return msgspec.json.encode(line, enc_hook=str).decode()


def write_logs(level: str = "info") -> None:
    """Write the router's logs to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(_ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def _place(traceback: Any) -> str:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
