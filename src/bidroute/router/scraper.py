"""Looks at every worker's metrics a few times a second and says what it saw. It never decides anything."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from bidroute.errors import ConfigError
from bidroute.router.discovery import one_line, read_limited
from bidroute.router.readings import Reading, parse_reading
from bidroute.router.workers import Worker

_LOG = logging.getLogger(__name__)
_JITTER = 0.1  # of the interval, so that a fleet is not read all at once

UNREACHABLE = "cannot be reached"  # how the reason begins where nobody listens; others are slow, or answer strangely

OnReading = Callable[[Worker, Reading, float], None]
OnFailure = Callable[[Worker, str], None]


@dataclass(frozen=True, slots=True)
class ScraperSettings:
    """`rate_hz` readings per second and worker, 1–5: a page costs an engine 10–30 ms of its own time.

    Raises ConfigError for other rates, or a timeout that is not positive.
    """

    rate_hz: float = 2.0
    timeout_s: float = 2.0
    largest_bytes: int = 8_000_000

    def __post_init__(self) -> None:
        if not 1.0 <= self.rate_hz <= 5.0:
            raise ConfigError(f"scrape rate {self.rate_hz} per second; expected 1 to 5: a page costs the engine time")
        if not self.timeout_s > 0:
            raise ConfigError(f"scrape timeout_s={self.timeout_s}; expected a positive number of seconds")


def open_session(
    dns_ttl_s: float = 10.0, connections: int = 0, authorities: str | None = None
) -> aiohttp.ClientSession:
    """A client session whose DNS answers are asked for again after `dns_ttl_s`; 0 connections: no limit.

    `authorities` is the PEM file of those who certify https workers; None: the system's.
    """
    tls = ssl.create_default_context(cafile=authorities) if authorities is not None else True
    ttl_s = max(1, round(dns_ttl_s))
    connector = aiohttp.TCPConnector(limit=connections, use_dns_cache=True, ttl_dns_cache=ttl_s, ssl=tls)
    return aiohttp.ClientSession(connector=connector, auto_decompress=True)


class Scraper:
    """One task per watched worker. `on_reading(worker, reading, now_s)` and `on_failure(worker, reason)` are called
    on the event loop and must not block; `now_s` is the loop's time when the page had arrived.

    A worker has one request out at a time: a slow page delays the next one and nothing else.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        on_reading: OnReading,
        on_failure: OnFailure,
        settings: ScraperSettings | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.session = session
        self.settings = settings or ScraperSettings()
        self._on_reading = on_reading
        self._on_failure = on_failure
        self._random = random.Random(seed)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, worker: Worker) -> None:
        """Read this worker from now on; the one of the same name watched before is let go."""
        self.forget(worker)
        self._tasks[worker.name] = asyncio.get_running_loop().create_task(
            self._run(worker), name=f"scrape {worker.name}"
        )

    def forget(self, worker: Worker) -> None:
        """Read this worker no more; unknown ones are ignored."""
        task = self._tasks.pop(worker.name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop all tasks; the session stays the caller's."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def read(self, worker: Worker) -> Reading:
        """One reading now. Raises aiohttp.ClientError, TimeoutError, OSError or ValueError (not a 200, too large)."""
        timeout = aiohttp.ClientTimeout(total=self.settings.timeout_s)
        url = f"{worker.url}/metrics"
        async with self.session.get(url, headers=worker.headers, timeout=timeout) as answer:
            if answer.status != 200:
                raise ValueError(f"status {answer.status} from {url}")
            body = await read_limited(answer, self.settings.largest_bytes)
        return parse_reading(body.decode("utf-8", "replace"))

    async def _run(self, worker: Worker) -> None:
        interval_s = 1.0 / self.settings.rate_hz
        loop = asyncio.get_running_loop()
        next_s = loop.time() + interval_s * self._random.random()
        while True:
            await asyncio.sleep(max(0.0, next_s - loop.time()))
            await self._once(worker)
            jittered_s = interval_s * (1.0 + _JITTER * (2.0 * self._random.random() - 1.0))
            # Readings missed while one was slow are not made up for.
            next_s = max(next_s + jittered_s, loop.time() + 0.2 * interval_s)

    async def _once(self, worker: Worker) -> None:
        try:
            reading = await self.read(worker)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            self._tell(self._on_failure, worker, _reason(problem))
        else:
            self._tell(self._on_reading, worker, reading, asyncio.get_running_loop().time())

    def _tell(self, listener: Callable[..., None], worker: Worker, *news: object) -> None:
        """Hand on the news; a listener's bug must not end the readings of a worker."""
        try:
            listener(worker, *news)
        except Exception:
            _LOG.exception("worker %s: a listener to its readings failed", worker.name)


def _reason(problem: BaseException) -> str:
    """One line; that a name was not found for once says nothing about the worker."""
    unreachable = isinstance(problem, aiohttp.ClientConnectorError)
    if unreachable and not isinstance(problem, aiohttp.ClientConnectorDNSError):
        return f"{UNREACHABLE}: {one_line(problem)}"
    return one_line(problem)
