"""Requests through a router while its workers are killed, hung, slowed, drained, resized, and clients leave."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.soak.live import LiveWorker, Outcome, Routed, leaks, routed

NOT_STREAMED, LEAVES, SEVERAL = 0.25, 0.15, 0.1  # shares of the requests
CALM_S = 30  # with no request ending, after the last fault: more than a breaker's pause, and than any timeout here


@dataclass
class Report:
    """What came of it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)


class Chaos:
    """`requests` over `seconds`, a fault every `fault_s` seconds or so; the same `seed` plans the same."""

    def __init__(self, requests: int, workers: int, seconds: float, fault_s: float, seed: int) -> None:
        self.requests, self.seconds, self.fault_s = requests, seconds, fault_s
        self.random = Random(seed)
        self.workers = [
            LiveWorker(f"w{k}", batch_slots=4 + 2 * (k % 4), kv_tokens=800 + 400 * (k % 3), max_batched_tokens=256)
            for k in range(workers)
        ]
        self.report = Report()
        self._repairs: set[asyncio.Task[None]] = set()

    async def run(self, **settings: object) -> Report:
        for worker in self.workers:
            await worker.start()
        async with routed(self.workers, **{"hang_timeout_s": 0.8, **settings}) as router:
            breaking = asyncio.create_task(self._break_things(router))
            clients = await self._send(router)
            breaking.cancel()
            await asyncio.gather(breaking, *self._repairs, return_exceptions=True)
            await self._heal()
            stuck = await _unended(clients)
            if stuck:
                self.report.problems.append(f"{len(stuck)} requests stuck; {router.state().queue}")
                self.report.problems += [str(worker) for worker in router.state().workers]
            for client in clients:
                if client not in stuck:
                    self._judge(client.result())
            for client in stuck:
                client.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
            await asyncio.sleep(0.2)
            self.report.problems += leaks(router.dispatcher)
        return self.report

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _send(self, router: Routed) -> list[asyncio.Task[Outcome]]:
        clients = []
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        for k in range(self.requests):
            next_s += self.random.expovariate(self.requests / self.seconds)
            await asyncio.sleep(max(next_s - loop.time(), 0.0))
            clients.append(asyncio.create_task(self._ask(router)))
            if k % max(self.requests // 20, 1) == 0:
                self.report.memory_mib.append(_memory_mib())
        return clients

    def _ask(self, router: Routed) -> Awaitable[Outcome]:
        random = self.random
        tokens, stream = random.randint(1, 60), random.random() > NOT_STREAMED
        leaves, how = random.random() < LEAVES, random.random()
        leave_after = random.randint(1, tokens) if leaves and stream and how < 0.5 else None
        choices = random.randint(2, 4) if random.random() < SEVERAL else 1
        leave_s = 0.3 * random.random() ** 2 if leaves and leave_after is None else None
        return router.ask(
            tokens,
            stream=stream,
            prompt_tokens=random.randint(1, 200),
            choices=choices,
            leave_after=leave_after,
            leave_s=leave_s,
        )

    def _judge(self, outcome: Outcome) -> None:
        word = outcome.kind + (f" {outcome.detail}" if outcome.kind in ("error", "broken") else "")
        self.report.outcomes[word] += 1
        if outcome.kind == "wrong" or not outcome.in_order:
            self.report.problems.append(f"tokens lost or doubled: {outcome}")
        if outcome.kind == "broken" and ("Error" in outcome.detail or outcome.detail == "no end"):
            self.report.problems.append(f"cut off without a word: {outcome}")

    # --- faults -----------------------------------------------------------------------------------------------------

    async def _break_things(self, router: Routed) -> None:
        kinds: dict[str, Callable[[Routed, LiveWorker], Awaitable[None]]] = {
            "kill": self._kill,
            "hang": self._hang,
            "slow": self._slow,
            "errors": self._errors,
            "drain": self._drain,
            "remove": self._remove,
            "resize": self._resize,
        }
        busy: set[str] = set()
        while True:
            await asyncio.sleep(self.fault_s * self.random.uniform(0.5, 1.5))
            free = [worker for worker in self.workers if worker.name not in busy]
            if len(free) < 2:
                continue
            worker, kind = self.random.choice(free), self.random.choice(list(kinds))
            busy.add(worker.name)
            self.report.faults[kind] += 1
            repair = asyncio.create_task(self._one(kinds[kind], router, worker, busy))
            self._repairs.add(repair)
            repair.add_done_callback(self._repairs.discard)

    async def _one(
        self,
        fault: Callable[[Routed, LiveWorker], Awaitable[None]],
        router: Routed,
        worker: LiveWorker,
        busy: set[str],
    ) -> None:
        try:
            await fault(router, worker)
        except Exception as problem:
            self.report.problems.append(f"{fault.__name__} {worker.name}: {problem!r}")
        busy.discard(worker.name)

    async def _kill(self, router: Routed, worker: LiveWorker) -> None:
        await worker.kill()
        await asyncio.sleep(self.random.uniform(0.1, 2.0))
        await worker.start()

    async def _hang(self, router: Routed, worker: LiveWorker) -> None:
        worker.fault("hang")
        await asyncio.sleep(self.random.uniform(0.3, 3.0))
        worker.fault("none")

    async def _slow(self, router: Routed, worker: LiveWorker) -> None:
        worker.fault("slow", factor=self.random.uniform(2.0, 20.0))
        await asyncio.sleep(self.random.uniform(0.3, 2.0))
        worker.fault("none")

    async def _errors(self, router: Routed, worker: LiveWorker) -> None:
        kind, status = self.random.choice(["error", "drop", "stream_error"]), self.random.choice([500, 503, 429, 400])
        worker.fault(kind, status=status, count=self.random.randint(1, 8), after_tokens=self.random.randint(0, 30))
        await asyncio.sleep(1.0)
        worker.fault("none")

    async def _drain(self, router: Routed, worker: LiveWorker) -> None:
        await self._expect(router, 200, "POST", f"/admin/workers/{worker.name}/drain", {})
        await self._back(router, worker)

    async def _remove(self, router: Routed, worker: LiveWorker) -> None:
        now = self.random.choice(["true", "false"])
        await self._expect(router, 200, "DELETE", f"/admin/workers/{worker.name}?now={now}")
        await self._back(router, worker)

    async def _back(self, router: Routed, worker: LiveWorker) -> None:
        await asyncio.sleep(self.random.uniform(0.0, 0.6))
        await self._expect(router, 201, "POST", "/admin/workers", {"url": worker.url, "name": worker.name})
        while worker.name not in router.dispatcher.workers:
            await asyncio.sleep(0.05)

    async def _resize(self, router: Routed, worker: LiveWorker) -> None:
        for factor in (0.5, 1.0):
            slots, kv_tokens = (
                int(worker.settings.batch_slots * factor),
                int(worker.settings.kv_tokens * factor),
            )
            body = {"batch_slots": slots, "kv_tokens": kv_tokens}
            await self._expect(router, 200, "POST", f"/admin/workers/{worker.name}/resize", body)
            await asyncio.sleep(self.random.uniform(0.2, 1.0))

    async def _expect(self, router: Routed, status: int, method: str, path: str, body: object = None) -> None:
        got, answer = await router.admin(method, path, body)
        if got != status:
            raise ValueError(f"{method} {path}: {got} {answer}")

    async def _heal(self) -> None:
        for worker in self.workers:
            if not worker.up:
                await worker.start()
            worker.fault("none")


async def _unended(clients: list[asyncio.Task[Outcome]]) -> set[asyncio.Task[Outcome]]:
    """Those that do not end; counted in steps rather than by a clock, for a machine that stands still for a while."""
    pending, calm_s = set(clients), 0
    while pending and calm_s < CALM_S:
        ended, pending = await asyncio.wait(pending, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        calm_s = 0 if ended else calm_s + 1
    return pending


def _memory_mib() -> float:
    """Memory that this process has now, where the system tells; else the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
