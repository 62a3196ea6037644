"""The engine in real time: iterations begin and end by the clock."""

from __future__ import annotations

import asyncio
import time

from bidroute.worker.engine import Engine, Sequence
from bidroute.worker.faults import Faults

LONGEST_LAG_S = 0.05  # an iteration late by less is made up for, so that timers' jitter does not add up


class Runner:
    """Runs an engine `time_scale` times faster than real. `run` is a task that lives as long as the worker.

    `lag_s` adds up the time by which the process fell behind for good: a worker that cannot keep its pace.
    """

    def __init__(self, engine: Engine, time_scale: float, faults: Faults) -> None:
        self.engine = engine
        self.time_scale = time_scale
        self.faults = faults
        self.lag_s = 0.0
        self._work = asyncio.Event()

    def add(self, sequence: Sequence) -> None:
        """A request enters the engine's own queue."""
        self.engine.add(sequence)
        self._work.set()

    async def run(self) -> None:
        """Iterate for ever; sleeps while there is nothing to do."""
        start_s = time.monotonic()
        while True:
            await self.faults.unhung.wait()
            duration_s = self.engine.begin()
            if duration_s is None:
                self._work.clear()
                await self._work.wait()
                start_s = time.monotonic()
                continue
            end_s = start_s + duration_s * self.faults.slowdown / self.time_scale
            await asyncio.sleep(max(0.0, end_s - time.monotonic()))
            await self.faults.unhung.wait()
            for sequence in self.engine.complete():
                if sequence.wake is not None:
                    sequence.wake()
            late_s = time.monotonic() - end_s
            if late_s > LONGEST_LAG_S:
                self.lag_s += late_s
                end_s += late_s
            start_s = end_s
