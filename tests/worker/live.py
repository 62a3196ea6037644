"""A worker on a free port, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from bidroute.worker.app import WorkerApp
from bidroute.worker.serve import serving
from bidroute.worker.settings import WorkerSettings

QUICK = "affine:0.002,0,0"
SLOW = "affine:0.05,0,0"
NO_PREFILL = "affine:0,0"


@dataclass
class Live:
    worker: WorkerApp
    url: str
    session: aiohttp.ClientSession

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=raw) as response:
            return response.status, json.loads(await response.read())

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.text()

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, as they came; DONE is the text."""
        async with self.session.post(self.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            raw = await response.read()
        lines = [line.removeprefix("data: ") for line in raw.decode().split("\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    async def metric(self, name: str, label: str = "") -> float:
        _, page = await self.get("/metrics")
        found = [line for line in page.splitlines() if line.startswith((name + "{", name + " ")) and label in line]
        assert len(found) == 1, (name, found)
        return float(found[0].rsplit(" ", 1)[1])


@contextlib.asynccontextmanager
async def live(**settings: Any) -> AsyncIterator[Live]:
    chosen = WorkerSettings(**{"latency": QUICK, "prefill": NO_PREFILL, **settings})
    async with (
        serving(chosen) as (worker, port),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Live(worker, f"http://127.0.0.1:{port}", session)


async def until(condition: Callable[[], bool], timeout_s: float = 3.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
