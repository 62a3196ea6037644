"""Catch silence: workers that accept and never progress, clients that stop reading.

Each exchange has a deadline that moves with every piece of data. Moving it is one assignment; one sweep a moment looks
at all of them, so a token costs no timer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

_SWEEPS_PER_TIMEOUT = 4
_SWEEP_S = (0.02, 1.0)  # the shortest and the longest time between sweeps


class Watch:
    """One exchange under watch, as a context: TimeoutError is raised in it once `deadline_s` (loop time) has passed.

    `timer` is the `asyncio.timeout(None)` around it, to be set first. `on_client` says whose move it is, and so who is
    to blame.
    """

    __slots__ = ("_watched", "deadline_s", "on_client", "timer")

    def __init__(self, watched: set[Watch], deadline_s: float) -> None:
        self._watched = watched
        self.deadline_s = deadline_s
        self.timer: asyncio.Timeout
        self.on_client = False

    def __enter__(self) -> Self:
        self._watched.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, place: TracebackType | None
    ) -> None:
        self._watched.discard(self)


class Watchdog:
    """Sweeps over everything watched until it is stopped."""

    def __init__(self, shortest_timeout_s: float) -> None:
        self._watched: set[Watch] = set()
        shortest_s, longest_s = _SWEEP_S
        self._sweep_s = min(max(shortest_timeout_s / _SWEEPS_PER_TIMEOUT, shortest_s), longest_s)
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep, on the running loop."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self) -> None:
        """End the sweeps."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])

    def watch(self, deadline_s: float) -> Watch:
        """A watch to be entered inside `async with asyncio.timeout(None) as watch.timer`."""
        return Watch(self._watched, deadline_s)

    async def _sweep(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._sweep_s)
            now_s = now()
            for watch in [watch for watch in self._watched if watch.deadline_s < now_s]:
                self._watched.discard(watch)
                watch.timer.reschedule(now_s)
