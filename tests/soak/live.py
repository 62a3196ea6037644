"""Real workers, a real router in front of them, and clients that count their tokens, all in one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from bidroute.replay.processes import free_port
from bidroute.router.dispatcher import Dispatcher
from bidroute.router.http_settings import HttpSettings
from bidroute.router.live_fleet import LiveFleet
from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.run import running_router
from bidroute.router.settings import RouterSettings, WorkerSettings
from bidroute.router.state import RouterState, WorkerState
from bidroute.worker.app import WorkerApp
from bidroute.worker.faults import Fault
from bidroute.worker.settings import WorkerSettings as EngineSettings

_QUIET = logging.getLogger("tests.worker")  # a worker that is killed complains about every request
_QUIET.setLevel(logging.CRITICAL + 1)
ENGINE = {"latency": "affine:0.004,0,0", "prefill": "affine:0,0.00001", "allow_faults": True}


class LiveWorker:
    """A `bidroute worker` on a port of its own, which can be killed and started again."""

    def __init__(self, name: str, **engine: Any) -> None:
        self.name = name
        self.settings = EngineSettings(**{**ENGINE, **engine})
        self.port = free_port()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def up(self) -> bool:
        return self._runner is not None

    async def start(self) -> None:
        self.app = WorkerApp(self.settings)
        self._runner = web.AppRunner(
            self.app.build(), access_log=None, handler_cancellation=True, shutdown_timeout=0.05, logger=_QUIET
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def kill(self) -> None:
        """Every connection breaks, and nobody listens any more."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        if runner.server is not None:
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        await runner.cleanup()

    def fault(self, kind: str, **more: Any) -> None:
        self.app.faults.set(Fault(kind, **more))  # type: ignore[arg-type]


@dataclass
class Outcome:
    """How a request ended for its client: `tokens` it got, in order or not, and an error's status or code."""

    kind: str  # whole, error, broken (an error event, or no end), left
    tokens: int = 0
    in_order: bool = True
    detail: str = ""
    worker: str = ""


@dataclass
class Routed:
    """A router that runs, and a client for it."""

    fleet: LiveFleet
    url: str
    admin_url: str
    session: aiohttp.ClientSession

    @property
    def dispatcher(self) -> Dispatcher:
        return self.fleet.dispatcher

    def state(self) -> RouterState:
        return self.fleet.state()

    def worker_state(self, name: str) -> WorkerState:
        return next(worker for worker in self.state().workers if worker.name == name)

    async def admin(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.request(method, f"{self.admin_url}{path}", json=body) as answer:
            raw = await answer.read()
            return answer.status, json.loads(raw) if answer.content_type == "application/json" else raw.decode()

    async def ask(
        self,
        tokens: int,
        *,
        stream: bool = True,
        prompt_tokens: int = 20,
        text: str | None = None,
        choices: int = 1,
        leave_after: int | None = None,
        leave_s: float | None = None,
        request_id: str | None = None,
        model: str = "",
    ) -> Outcome:
        """One completion of exactly so many tokens, of a prompt of so many ids, or of this text.

        The client leaves after so many of them, or so much time.
        """
        prompt = [1] * prompt_tokens if text is None else text
        body = {
            "model": model,
            "prompt": prompt,
            "n": choices,
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        headers = {"x-request-id": request_id} if request_id else {}
        got = _Received()
        try:
            async with asyncio.timeout(leave_s):
                return await self._ask(body, headers, tokens * choices, leave_after, got)
        except TimeoutError:
            return got.outcome("left")
        except (aiohttp.ClientError, ConnectionError) as problem:
            return got.outcome("broken", type(problem).__name__)

    async def _ask(
        self, body: dict[str, Any], headers: dict[str, str], tokens: int, leave_after: int | None, got: _Received
    ) -> Outcome:
        async with self.session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            got.worker = answer.headers.get("x-bidroute-worker", "")
            if answer.status != 200 or not body["stream"]:
                return got.whole(answer.status, json.loads(await answer.read()), tokens)
            async for line in answer.content:
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]\n":
                    return got.outcome("whole" if got.count == tokens else "wrong", "done")
                event = json.loads(line[6:])
                if "error" in event:
                    return got.outcome("broken", str(event["error"]["code"]))
                for choice in event["choices"]:
                    got.text(choice)
                if leave_after is not None and got.count >= leave_after:
                    answer.close()
                    return got.outcome("left")
        return got.outcome("broken", "no end")


class _Received:
    """Tokens as they come: a worker's k-th token is the text " k"."""

    def __init__(self) -> None:
        self.count = 0
        self._by_choice: Counter[int] = Counter()
        self.in_order = True
        self.worker = ""

    def text(self, choice: dict[str, Any]) -> None:
        for token in choice["text"].split():
            self.count += 1
            self._by_choice[choice["index"]] += 1
            self.in_order &= token == str(self._by_choice[choice["index"]])

    def whole(self, status: int, answer: Any, tokens: int) -> Outcome:
        if status != 200:
            return self.outcome("error", f"{status} {answer['error']['code']}")
        for choice in answer["choices"]:
            self.text(choice)
        return self.outcome("whole" if self.count == tokens else "wrong")

    def outcome(self, kind: str, detail: str = "") -> Outcome:
        return Outcome(kind, self.count, self.in_order, detail, self.worker)


@asynccontextmanager
async def routed(
    workers: Sequence[LiveWorker], prefill: Sequence[LiveWorker] = (), **settings: Any
) -> AsyncIterator[Routed]:
    """A router in front of these workers, some for prefill; whoever is not up is to come late."""
    http = {"port": 0, "stall_timeout_s": 1.0, "first_byte_timeout_s": 2.0, "answer_timeout_s": 4.0}
    http |= settings.pop("http", {})
    admin_port = free_port()
    chosen = RouterSettings(
        workers=[WorkerSettings(worker.url, worker.name) for worker in workers],
        prefill=[WorkerSettings(worker.url, worker.name) for worker in prefill],
        http=HttpSettings(**http),
        admin_port=admin_port,
        **{"scrape_s": 0.2, **settings},
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with contextlib.AsyncExitStack() as stack:
        for worker in [*workers, *prefill]:
            stack.push_async_callback(worker.kill)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        fleet, listener = await stack.enter_async_context(running_router(chosen))
        yield Routed(fleet, f"http://127.0.0.1:{listener.port}", f"http://127.0.0.1:{admin_port}", session)


async def until(condition: Callable[[], object], timeout_s: float = 8.0) -> None:
    """Return as soon as it holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def leaks(dispatcher: Dispatcher) -> list[str]:
    """What is left in a dispatcher that should hold nothing any more."""
    left = {
        "leases": int(dispatcher.controller.state.fleet.open_leases.sum()),
        "queue": sum(len(controller.state.queue) for controller in dispatcher.roster.controllers()),
        "tickets": len(dispatcher.tickets),
        "waiting": len(dispatcher.room.waiting),
        "apart": len(dispatcher.room.apart),
        "by load": len(dispatcher.room.by_load),
        "reported": len(dispatcher._streams),
        "for prefill": len(dispatcher.room.for_prefill),
        "prefills": dispatcher.prefill.pool.total(LeaseStage.SENT)[0],
        "prefilled": dispatcher.prefill.pool.total(LeaseStage.WAITING)[0],
        "handed over": dispatcher.prefill.pool.total(LeaseStage.HANDED)[0],
    }
    totals = dispatcher.totals
    left["uncounted"] = totals.requests - totals.finished - totals.cancelled - totals.failed - totals.refused
    return [f"{count} {what}" for what, count in left.items() if count]
