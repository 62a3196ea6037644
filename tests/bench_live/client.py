"""The load client: closed loops on bare sockets, one kind of load a run, its figures as JSON on standard output.

latency    requests one after the other, to a worker and to the router in turn
rate       whole answers on many connections for some seconds
streams    streams on many connections, all read to their end
waiting    more streams than the workers have slots; gaps between chunks while the rest waits
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

from tests.bench_live.upstream import MODEL

PROMPT_BYTES = 1000
SETTLE_S = 4.0  # from the last request of a queue until measuring begins
OPENED_AT_ONCE = 50
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_PATH = "/v1/chat/completions"


def request_bytes(host: str, tokens: int, stream: bool) -> bytes:
    """A chat request, as a client would send it."""
    text = ("All the world's a stage, and all the men and women merely players. " * 20)[:PROMPT_BYTES]
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    if stream:
        body["stream"] = True
    content = json.dumps(body).encode()
    head = (
        f"POST {_PATH} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nUser-Agent: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Caller(asyncio.Protocol):
    """One connection; `ask` sends a request and waits for the end of its answer."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.events = 0
        self.gaps_s: list[float] | None = None  # between pieces of one stream, where they are wanted
        self.started_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self) -> asyncio.Future[None]:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = -1  # bytes of a body of known length; below 0: not known
        self._head = b""
        self._begun = False
        self._last_s = 0.0
        self.transport.write(self.request)
        return self.ended

    def data_received(self, data: bytes) -> None:
        if not self._begun:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._head.startswith(b"HTTP/1.1 200"):
                self.ended.set_exception(RuntimeError(self._head[:300].decode(errors="replace")))
                return
            self._begun = True
            length = _LENGTH.search(self._head, 0, end)
            data = self._head[end + 4 :]
            self._left = int(length[1]) if length else -1
            self.started_s = time.perf_counter()
        if self._left >= 0:
            self._left -= len(data)
            if self._left == 0:
                self.ended.set_result(None)
            return
        if self.gaps_s is not None and data:
            now_s = time.perf_counter()
            if self._last_s:
                self.gaps_s.append(now_s - self._last_s)
            self._last_s = now_s
        self.events += data.count(b"data:")
        if data.endswith(b"0\r\n\r\n"):
            self.ended.set_result(None)

    def connection_lost(self, problem: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(problem or RuntimeError("the connection was closed"))


async def connected(url: str, tokens: int, stream: bool) -> Caller:
    """A connection to this server."""
    parts = urlsplit(url)
    request = request_bytes(parts.netloc, tokens, stream)
    loop = asyncio.get_running_loop()
    _, caller = await loop.create_connection(lambda: Caller(request), parts.hostname or "", parts.port or 80)
    return caller


async def latency(workers: list[str], router: str, requests: int) -> dict[str, Any]:
    """Seconds of every request, direct and through the router, in turn so that both meet the same machine."""
    direct = [await connected(url, 1, False) for url in workers]
    through = await connected(router, 1, False)
    direct_s: list[float] = []
    router_s: list[float] = []
    for index in range(requests):
        for caller, times in ((direct[index % len(direct)], direct_s), (through, router_s)):
            before_s = time.perf_counter()
            await caller.ask()
            times.append(time.perf_counter() - before_s)
    return {"direct_s": direct_s, "router_s": router_s}


async def rate(router: str, connections: int, seconds: float) -> dict[str, Any]:
    """How many whole answers came on so many connections."""
    callers = [await connected(router, 1, False) for _ in range(connections)]
    end_s = time.perf_counter() + seconds

    async def loop(caller: Caller) -> int:
        count = 0
        while time.perf_counter() < end_s:
            await caller.ask()
            count += 1
        return count

    before_s = time.perf_counter()
    requests = sum(await asyncio.gather(*map(loop, callers)))
    return {"requests": requests, "seconds": time.perf_counter() - before_s}


async def streams(targets: list[str], connections: int, chunks: int) -> dict[str, Any]:
    """Read so many streams at once to their end."""
    callers = [await connected(targets[index % len(targets)], chunks, True) for index in range(connections)]
    for caller in callers:
        caller.gaps_s = []
    await asyncio.gather(*(caller.ask() for caller in callers))
    events = sum(caller.events for caller in callers)
    if events != connections * (chunks + 1):
        raise RuntimeError(f"{events} events came, {connections * (chunks + 1)} were due")
    return {"chunks": connections * chunks, "gaps_s": [gap for caller in callers for gap in caller.gaps_s or ()]}


async def waiting(targets: list[str], connections: int, chunks: int, seconds: float) -> dict[str, Any]:
    """Open so many streams, each asked for again when it ends, and look at gaps once all of them have asked."""
    callers: list[Caller] = []
    loops: set[asyncio.Task[None]] = set()
    started_s: list[float] = []

    async def loop(caller: Caller) -> None:
        while True:
            await caller.ask()
            started_s.append(caller.started_s)

    for start in range(0, connections, OPENED_AT_ONCE):
        some = range(start, min(start + OPENED_AT_ONCE, connections))
        opened = await asyncio.gather(*(connected(targets[index % len(targets)], chunks, True) for index in some))
        loops |= {asyncio.create_task(loop(caller)) for caller in opened}
        callers += opened
    await asyncio.sleep(SETTLE_S)
    for caller in callers:
        caller.gaps_s = []
    started_s.clear()
    await asyncio.sleep(seconds)
    for task in loops:
        if task.done():
            task.result()
        task.cancel()
    return {"ended": len(started_s), "gaps_s": [gap for caller in callers for gap in caller.gaps_s or ()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=("latency", "rate", "streams", "waiting"))
    parser.add_argument("--target", action="append", required=True)
    parser.add_argument("--worker", action="append", default=[])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    runs = {
        "latency": lambda: latency(given.worker, given.target[0], given.requests),
        "rate": lambda: rate(given.target[0], given.connections, given.seconds),
        "streams": lambda: streams(given.target, given.connections, given.chunks),
        "waiting": lambda: waiting(given.target, given.connections, given.chunks, given.seconds),
    }
    print(json.dumps(uvloop.run(runs[given.load]())))


if __name__ == "__main__":
    main()
