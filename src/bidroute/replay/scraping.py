"""What the workers say of a replay: preemptions, and the longest queue each had of its own."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import aiohttp

INTERVAL_S = 0.5
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_PREEMPTIONS = ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")


@dataclass(slots=True)
class WorkerCounts:
    """Of one worker: preemptions during the replay, and the peak of its own queue as seen twice a second."""

    url: str
    preemptions: int = 0
    queue_peak: int = 0
    misses: int = 0


class Scraper:
    """Reads the workers' `/metrics` from `begin` to `end`."""

    def __init__(self, session: aiohttp.ClientSession, urls: tuple[str, ...]) -> None:
        self.workers = [WorkerCounts(url.rstrip("/")) for url in urls]
        self._session = session
        self._before: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Note where the counters stand, and look at the queues from now on. Raises ClientError where none answers."""
        for worker in self.workers:
            self._before[worker.url] = total(await self._page(worker.url), _PREEMPTIONS)
        self._task = asyncio.create_task(self._look()) if self.workers else None

    async def end(self) -> list[WorkerCounts]:
        """What has happened since `begin`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await asyncio.gather(*(self._read(worker) for worker in self.workers))
        return self.workers

    async def _look(self) -> None:
        while True:
            await asyncio.gather(*(self._read(worker) for worker in self.workers))
            await asyncio.sleep(INTERVAL_S)

    async def _read(self, worker: WorkerCounts) -> None:
        try:
            page = await self._page(worker.url)
        except (aiohttp.ClientError, OSError, TimeoutError):
            worker.misses += 1
            return
        worker.queue_peak = max(worker.queue_peak, int(total(page, _WAITING)))
        worker.preemptions = max(0, int(total(page, _PREEMPTIONS) - self._before[worker.url]))

    async def _page(self, url: str) -> str:
        async with self._session.get(f"{url}/metrics", timeout=_TIMEOUT, raise_for_status=True) as response:
            return await response.text()


def total(page: str, names: tuple[str, ...]) -> float:
    """The sum over all labels of the metrics named."""
    pattern = "|".join(map(re.escape, names))
    return sum(float(value) for value in re.findall(rf"^(?:{pattern})(?:\{{.*\}})? (\S+)", page, re.MULTILINE))
