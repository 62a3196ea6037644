"""The answer to a client, written straight to its connection: the head and the first bytes in one piece."""

from __future__ import annotations

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from bidroute.router.answer import Answer
from bidroute.router.attempts import ClientGoneError

_REPLACED = frozenset((b"x-request-id", b"x-bidroute-worker"))


class ClientAnswer(web.StreamResponse):
    """A worker's answer on its way to a client. aiohttp serves the connection, and finds the answer written."""

    def __init__(self, request: web.BaseRequest, answer: Answer, request_id: str, worker_name: str) -> None:
        # Not super().__init__: its headers, cookies and payload are what this class does without.
        self._status = answer.status
        self._eof_sent = True
        self._request = request
        self._closes = not request.keep_alive or request.version != (1, 1)
        self._chunked_for_client = request.version == (1, 1)
        lines = [line for name, line in answer.head_lines if name not in _REPLACED]
        lines.append(b"x-request-id: " + request_id.encode())
        lines.append(b"x-bidroute-worker: " + worker_name.encode("ascii", "replace"))
        if self._closes:
            lines.append(b"Connection: close")
        self._lines = lines
        self._status_line = b"HTTP/1.1 %d %b" % (answer.status, answer.reason)
        self.begun = False
        self._ended = False

    def add_line(self, line: bytes) -> None:
        """One more header line, before anything is written."""
        self._lines.append(line)

    def write_whole(self, body: bytes) -> None:
        """All of it at once. Raises ClientGoneError."""
        self._lines.append(b"Content-Length: %d" % len(body))
        self._put(self._head() + body)
        self._ended = True

    def write_piece(self, data: bytes) -> None:
        """Some bytes of a stream. Raises ClientGoneError."""
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked_for_client else data
        if self.begun:
            self._put(framed)
            return
        if self._chunked_for_client:
            self._lines.append(b"Transfer-Encoding: chunked")
        self._put(self._head() + framed)

    def end(self) -> None:
        """The end of a stream. Raises ClientGoneError."""
        if not self.begun:
            self.write_whole(b"")
        elif not self._ended:
            self._ended = True
            if self._chunked_for_client:
                self._put(b"0\r\n\r\n")

    def _head(self) -> bytes:
        self.begun = True
        self._request.writer.output_size = 1  # aiohttp must not begin an answer of its own
        return self._status_line + b"\r\n" + b"\r\n".join(self._lines) + b"\r\n\r\n"

    def _put(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGoneError
        transport.write(data)

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection may serve another request."""
        return not self._closes

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """All is written already."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """All is written already."""
