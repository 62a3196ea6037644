"""Reads an answer as it streams in: when the first token came, how it ended, what it cost."""

from __future__ import annotations

import json
from typing import Any


class AnswerStream:
    """Feed it the bytes of a server-sent event stream.

    `chunks` counts the events that carry text, `started` says whether there was one; `usage` and `error` are what the
    stream said, `done` whether it ended with [DONE].
    """

    def __init__(self) -> None:
        self.chunks = 0
        self.done = False
        self.usage: dict[str, Any] | None = None
        self.error: str | None = None
        self._rest = b""

    @property
    def started(self) -> bool:
        """Whether the first token has come."""
        return self.chunks > 0

    def feed(self, data: bytes) -> None:
        """The next bytes, cut anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def _event(self, event: bytes) -> None:
        if event == b"[DONE]":
            self.done = True
        elif self.started and b'"usage"' not in event and b'"error"' not in event:
            self.chunks += 1  # the many in the middle, which need no reading
        else:
            self._read(event)

    def _read(self, event: bytes) -> None:
        try:
            data = json.loads(event)
            if "error" in data:
                self.error = str(data["error"])
            self.usage = data.get("usage") or self.usage
            texts = [choice.get("text") or (choice.get("delta") or {}).get("content") for choice in data["choices"]]
            self.chunks += any(texts)
        except (ValueError, TypeError, AttributeError, LookupError):
            self.error = self.error or f"not an OpenAI event: {event[:100]!r}"
