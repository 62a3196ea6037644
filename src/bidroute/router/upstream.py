"""The connections to the workers: kept alive, one request at a time on each, no limit to their number.

Bytes are handed on in the very call in which they arrive: no task wakes up for a token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from bidroute.router.answer import Answer
from bidroute.router.http_settings import HttpSettings
from bidroute.router.workers import Worker

_IDLE_S = 4.0  # uvicorn, in front of vLLM and SGLang, closes idle connections after 5
_JOINED_BYTES = 64 * 1024  # a body up to this size goes out in one piece with its head


class ConnectFailedError(OSError):
    """No connection to the worker."""


class _StaleError(Exception):
    """A kept connection turned out to be closed before anything came back on it."""


class Call:
    """One request to a worker and its answer as it comes; `on_body` gets the body's bytes, else `body` keeps them.

    `ended` is done when the answer is complete, or fails with what went wrong.
    """

    __slots__ = ("answer", "connection", "ended", "on_body", "pieces")

    def __init__(self, on_body: Callable[[Call, bytes], None] | None = None) -> None:
        self.on_body = on_body
        self.answer = Answer()
        self.pieces: list[bytes] = []
        self.connection: Connection | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def body(self) -> bytes:
        """The body, where it was kept."""
        return b"".join(self.pieces)

    def fail(self, problem: BaseException) -> None:
        """End it with this."""
        if not self.ended.done():
            self.ended.set_exception(problem)
            self.ended.exception()  # nobody may be left to ask for it

    def pause(self, paused: bool) -> None:
        """Let the worker wait (or not any more) while the client is slow to read."""
        transport = self.connection.transport if self.connection is not None else None
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if paused else transport.resume_reading)()


class Connection(asyncio.Protocol):
    """One connection to a worker."""

    def __init__(self, idle: list[Connection]) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since_s = 0.0
        self.used = False  # whether it has served a request before this one
        self._idle = idle
        self._call: Call | None = None
        self._silent = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's classes

    def send(self, head: bytes, body: bytes, call: Call) -> None:
        """Send a request and give what comes back to this call."""
        assert self.transport is not None
        self._call, self._silent = call, True
        call.connection = self
        if len(body) <= _JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def data_received(self, data: bytes) -> None:
        """Bytes from the worker."""
        call, self._silent = self._call, False
        if call is None:  # it speaks without being asked
            self.abort()
            return
        answer = call.answer
        try:
            body = answer.feed(data)
            if body:
                if call.on_body is None:
                    call.pieces.append(body)
                else:
                    call.on_body(call, body)
        except Exception as problem:
            call.fail(problem)
            self.abort()
            return
        if answer.complete:
            self._done(call)

    def _done(self, call: Call) -> None:
        self._call = None
        assert self.transport is not None
        if call.answer.keep_alive and not self.transport.is_closing():
            self.used = True
            self.idle_since_s = asyncio.get_running_loop().time()
            self.transport.resume_reading()
            self._idle.append(self)
        else:
            self.transport.close()
        if not call.ended.done():
            call.ended.set_result(None)

    def eof_received(self) -> None:
        """The worker will say no more; the connection closes."""

    def connection_lost(self, problem: Exception | None) -> None:
        """The connection is gone."""
        call, self._call = self._call, None
        if self in self._idle:
            self._idle.remove(self)
        if call is None:
            return
        try:
            if problem is not None:
                raise problem
            call.answer.end()
        except (OSError, EOFError) as lost:
            call.fail(_StaleError() if self.used and self._silent else lost)
        else:
            if not call.ended.done():
                call.ended.set_result(None)

    def abort(self) -> None:
        """Close it now, and forget its request: the worker sees the client leave."""
        self._call = None
        if self.transport is not None:
            self.transport.abort()


class Upstream:
    """Keeps connections to all workers."""

    def __init__(self, settings: HttpSettings) -> None:
        self._connect_timeout_s = settings.connect_timeout_s
        self._worker_ca = settings.worker_ca
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[str, list[Connection]] = {}
        self._places: dict[str, tuple[str, int, bool, bytes, str]] = {}

    async def run(self, call: Call, method: str, worker: Worker, path: str, lines: bytes, body: bytes) -> None:
        """Send a request and wait for its answer's end. `lines` are header lines, each with its line break.

        Raises what `on_body` raises, OSError, EOFError and BadAnswerError; a cancelled call closes its connection.
        """
        host, port, tls, host_line, prefix = self._place(worker.url)
        head = b"%b %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n" % (
            method.encode(),
            (prefix + path).encode("utf-8", "surrogateescape"),
            host_line,
            lines,
            len(body),
        )
        connection = self._kept(worker.url) or await self._connected(worker.url, host, port, tls)
        try:
            connection.send(head, body, call)
            await call.ended
        except _StaleError:
            call.ended = asyncio.get_running_loop().create_future()
            connection = await self._connected(worker.url, host, port, tls)
            connection.send(head, body, call)
            await call.ended
        finally:
            if not call.answer.complete:
                connection.abort()

    def _kept(self, url: str) -> Connection | None:
        """A connection that is open, and young enough to be so at the other end too."""
        idle, now_s = self._idle.get(url), asyncio.get_running_loop().time()
        while idle:
            connection = idle.pop()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                if now_s - connection.idle_since_s < _IDLE_S:
                    return connection
                transport.close()
        return None

    async def _connected(self, url: str, host: str, port: int, tls: bool) -> Connection:
        idle = self._idle.setdefault(url, [])
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(idle), host, port, ssl=self._context() if tls else None
                )
        except OSError as problem:  # a timeout too
            raise ConnectFailedError(type(problem).__name__) from None
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._worker_ca)
        return self._tls

    def _place(self, url: str) -> tuple[str, int, bool, bytes, str]:
        """Host, port, whether TLS, the Host line and the path's beginning of a worker's URL."""
        place = self._places.get(url)
        if place is None:
            parts = urlsplit(url)
            tls = parts.scheme == "https"
            named = parts.netloc.rpartition("@")[2]
            host_line = f"Host: {named}\r\n".encode()
            place = (parts.hostname or "", parts.port or (443 if tls else 80), tls, host_line, parts.path.rstrip("/"))
            self._places[url] = place
        return place

    async def close(self) -> None:
        """Close every connection that is kept."""
        for idle in self._idle.values():
            for connection in list(idle):
                connection.abort()
        await asyncio.sleep(0)
