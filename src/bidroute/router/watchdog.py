"""Catch silence: workers that accept and never progress, clients that stop reading.

Each exchange has a deadline that moves with every piece of data. Moving it is one assignment; one sweep a moment looks
at all of them, so a token costs no timer.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from bidroute.router.upstream import Call

_SWEEPS_PER_TIMEOUT = 4
_SWEEP_S = (0.02, 1.0)  # the shortest and the longest time between sweeps


class Watch:
    """One call under watch, as a context: it fails with TimeoutError once `deadline_s` (loop time) has passed.

    `on_client` says whose move it is, and so who is to blame.
    """

    __slots__ = ("_watched", "call", "deadline_s", "on_client")

    def __init__(self, watched: set[Watch], call: Call, deadline_s: float) -> None:
        self._watched = watched
        self.call = call
        self.deadline_s = deadline_s
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

    def watch(self, call: Call, deadline_s: float) -> Watch:
        """A watch to be entered while the call runs."""
        return Watch(self._watched, call, deadline_s)

    async def _sweep(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(self._sweep_s)
            now_s = now()
            for watch in [watch for watch in self._watched if watch.deadline_s < now_s]:
                self._watched.discard(watch)
                watch.call.fail(TimeoutError())
