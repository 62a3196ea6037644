"""Follow an OpenAI event stream as its bytes pass: whole events only, progress, usage and errors, almost no parsing."""

from __future__ import annotations

import re
from typing import Any

import msgspec

# The end of a line and an empty line. A lone carriage return does not end a line here: no server sends that.
_BLANK_LINES = re.compile(rb"\n(?:\r?\n)+")
_DATA_LINE = b"\ndata:"
_DONE = b"[DONE]"
_ROLE_ONLY = re.compile(rb'"content"\s*:\s*""')


class Usage(msgspec.Struct, frozen=True):
    """True token counts of a request, as the worker reports them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk, strict=False).decode


class StreamError(msgspec.Struct, frozen=True):
    """An error that came inside a stream: what its event says, and the HTTP status it stands for."""

    payload: bytes
    status: int


class SseScanner:
    """Takes the bytes of a stream in pieces of any size, gives back those that may go to the client.

    Only whole events are given back, as they were. With `hide_usage` the chunk that carries nothing but usage is left
    out. After an event with an error nothing more is given back: see `error`. `output_tokens` counts events with
    output (each is a token or more), or is what the stream's own usage says where that is higher.
    """

    __slots__ = ("_pending", "done", "error", "events", "hide_usage", "output_tokens", "usage")

    def __init__(self, hide_usage: bool = False) -> None:
        self.hide_usage = hide_usage
        self.events = 0  # events with data, whatever it is
        self.output_tokens = 0
        self.usage: Usage | None = None
        self.error: StreamError | None = None
        self.done = False
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Bytes that may go on to the client: every event that is whole now."""
        if self._pending:
            data = self._pending + data
        if data.endswith((b"\n\n", b"\n\r\n")):
            self._pending = b""
        else:
            end = _end_of_events(data)
            data, self._pending = data[:end], data[end:]
            if not data:
                return b""
        if self.events and self.error is None and not _telling(data):
            lines = data.count(_DATA_LINE) + data.startswith(b"data:")
            self.events += lines
            self.output_tokens += lines
            return data
        return self._one_by_one(data)

    def rest(self) -> bytes:
        """An event the stream broke off in, at the stream's end; it never went to the client."""
        return self._pending

    def _one_by_one(self, data: bytes) -> bytes:
        """Look at each event: the first ones, and those that may carry usage, an error or the end."""
        passed, start = [], 0
        for blank in _BLANK_LINES.finditer(data):
            event = data[start : blank.end()]
            start = blank.end()
            if self._passes(event):
                passed.append(event)
            if self.error is not None:
                break
        return b"".join(passed)

    def _passes(self, event: bytes) -> bool:
        if self.error is not None:
            return False
        lines = event.count(_DATA_LINE) + event.startswith(b"data:")
        if lines == 0:
            return True  # a comment, a heartbeat
        first, self.events = self.events == 0, self.events + lines
        if _telling(event):
            return self._told(event, lines)
        if not (first and _ROLE_ONLY.search(event)):  # a chat opens with the role and no text
            self.output_tokens += lines
        return True

    def _told(self, event: bytes, lines: int) -> bool:
        """An event with usage, an error or the end; False where the client must not see it."""
        payload = _payload(event)
        if payload == _DONE:
            self.done = True
            return True
        try:
            chunk = _decode(payload)
        except msgspec.MsgspecError:
            self.output_tokens += lines
            return True
        if chunk.error is not None:
            self.error = StreamError(payload, _status(chunk.error))
            return False
        if chunk.choices:
            self.output_tokens += lines
        if chunk.usage is not None:
            self.usage = chunk.usage
            self.output_tokens = max(self.output_tokens, chunk.usage.completion_tokens or 0)
        return not (self.hide_usage and chunk.usage is not None and chunk.choices == [])


def _telling(data: bytes) -> bool:
    """Whether there may be usage, an error or the end in there; inside a JSON string the quotes would be escaped."""
    return b'"usage"' in data or b'"error"' in data or _DONE in data


def _end_of_events(data: bytes) -> int:
    """Length of the whole events at the start of `data`."""
    unix, windows = data.rfind(b"\n\n"), data.rfind(b"\n\r\n")
    return max(unix + 2 if unix >= 0 else 0, windows + 3 if windows >= 0 else 0)


def _payload(event: bytes) -> bytes:
    """What the event's data lines say, joined as the standard has it."""
    return b"\n".join(line[len(b"data:") :].strip() for line in event.splitlines() if line.startswith(b"data:"))


def _status(error: Any) -> int:
    """The HTTP status an error event stands for; 500 where it does not say."""
    code = error.get("code") if isinstance(error, dict) else None
    try:
        status = int(code) if code is not None else 500
    except (TypeError, ValueError):
        return 500
    return status if 400 <= status < 600 else 500
