"""A dispatcher that keeps count, and workers on real sockets that behave as told."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from multidict import CIMultiDictProxy

from bidroute.router.http_settings import HttpSettings
from bidroute.router.serve import Listener
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.workers import Worker

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeDispatcher:
    """Releases at once (or when `gate` opens), to the first worker not tried yet; records what it is told."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = {worker.name: worker for worker in workers}
        self.gate = asyncio.Event()
        self.gate.set()
        self.refusal: RefusedError | None = None
        self.refusal_later: RefusedError | None = None
        self.tickets: list[Ticket] = []
        self.events: list[tuple[object, ...]] = []
        self.open: set[int] = set()
        self._ids = itertools.count()
        self.waiting = 0
        self.splits = False

    def least_busy(self, model: str) -> Worker:
        if not self.workers:
            raise RefusedError(503, "no_workers", "no worker is in service", 2.0)
        return next(iter(self.workers.values()))

    def submit(self, job: Job) -> Ticket:
        if self.refusal is not None:
            raise self.refusal
        ticket = Ticket(next(self._ids), job, 0.0, job.prompt_tokens or 1)
        self.tickets.append(ticket)
        self.open.add(ticket.id)
        return ticket

    async def released(self, ticket: Ticket) -> Worker:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.refusal_later is not None:
            self.open.remove(ticket.id)
            raise self.refusal_later
        fresh = [worker for worker in self.workers.values() if worker.name not in ticket.attempts]
        ticket.worker = (fresh or list(self.workers.values()))[0]
        ticket.attempts.append(ticket.worker.name)
        return ticket.worker

    def started(self, ticket: Ticket) -> None:
        self.events.append(("started", ticket.id))

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        assert ticket.id in self.open
        ticket.output_tokens = tokens

    def finished(self, ticket: Ticket, prompt_tokens: int | None, output_tokens: int | None) -> None:
        self._end(ticket, "finished", prompt_tokens, output_tokens)

    def cancelled(self, ticket: Ticket) -> None:
        self._end(ticket, "cancelled")

    def prefilled(self, ticket: Ticket, params: bytes, prompt_tokens: int | None) -> None:
        raise AssertionError("there are no prefill workers")

    def failed(self, ticket: Ticket, failure: Failure, detail: str = "", *, reached: bool = True) -> None:
        self._end(ticket, "failed", failure)

    def retry(self, ticket: Ticket) -> None:
        self.open.add(ticket.id)
        self.events.append(("retry", ticket.id))

    def _end(self, ticket: Ticket, *what: object) -> None:
        self.open.remove(ticket.id)  # fails where it ended before
        self.events.append(what)

    @property
    def ends(self) -> list[tuple[object, ...]]:
        """How tickets ended, without the rest."""
        return [event for event in self.events if event[0] not in ("started", "retry")]

    async def settled(self) -> None:
        """Wait until no ticket is open."""
        async with asyncio.timeout(5):
            while self.open:
                await asyncio.sleep(0.005)


class FakeWorker:
    """An upstream server: `behave` answers its POSTs; keeps the requests it saw, and whether one was cut off."""

    def __init__(self, behave: Behaviour, name: str = "a") -> None:
        self.behave = behave
        self.name = name
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.headers: list[CIMultiDictProxy[str]] = []
        self.cut_off = asyncio.Event()
        self.worker = Worker(name, "http://127.0.0.1:1")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeWorker]:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/{path:.*}", self._post)
        app.router.add_get("/v1/models", self._models)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.worker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        self.headers.append(request.headers)
        self.paths.append(request.raw_path)
        try:
            return await self.behave(request)
        except asyncio.CancelledError:
            self.cut_off.set()
            raise

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "tiny", "owned_by": self.name}, {"id": self.name}]})


def chunk(text: str) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
USAGE_EVENT = b"data: " + json.dumps({"id": "c", "choices": [], "usage": USAGE}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"


def streams(*pieces: bytes | float | type[Exception]) -> Behaviour:
    """Answer with these pieces: bytes are sent, numbers are waits in seconds, `ConnectionError` cuts the line."""

    async def behave(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for piece in pieces:
            if isinstance(piece, bytes):
                await response.write(piece)
            elif isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                assert request.transport is not None
                request.transport.abort()
                await asyncio.sleep(1)
        return response

    return behave


def answers(value: object, status: int = 200, **headers: str) -> Behaviour:
    """Answer with this JSON."""

    async def behave(request: web.Request) -> web.StreamResponse:
        return web.json_response(value, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return behave


COMPLETION = {"id": "c", "choices": [{"index": 0, "text": "hello"}], "usage": USAGE}


class Router:
    """A running gateway, its dispatcher and its address."""

    def __init__(self, listener: Listener, dispatcher: FakeDispatcher) -> None:
        self.listener = listener
        self.dispatcher = dispatcher
        self.url = f"http://127.0.0.1:{listener.port}"


@asynccontextmanager
async def router(*workers: FakeWorker, **settings: object) -> AsyncIterator[Router]:
    """A router in front of these workers; no ticket may be left open at the end."""
    dispatcher = FakeDispatcher([worker.worker for worker in workers])
    values = {"port": 0, "stall_timeout_s": 5.0, "drain_s": 2.0} | settings
    async with Listener(dispatcher, HttpSettings(**values)) as listener:  # type: ignore[arg-type]
        yield Router(listener, dispatcher)
        await dispatcher.settled()


async def raw(port: int, data: bytes, wait_s: float = 2.0, half_close: bool = False) -> bytes:
    """Send these bytes and read until the router closes, or nothing comes for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if half_close:
        writer.write_eof()
    answer = b""
    try:
        async with asyncio.timeout(wait_s):
            while piece := await reader.read(65536):
                answer += piece
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer
