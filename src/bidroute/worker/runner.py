"""The engine in real time: iterations begin and end by the clock."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bidroute.worker.engine import Engine, Sequence
from bidroute.worker.faults import Faults

LONGEST_LAG_S = 0.05  # an iteration late by less is made up for, so that timers' jitter does not add up


@dataclass(slots=True)
class Waits:
    """Waits of one kind, in wall time: how many, and their sum."""

    count: int = 0
    sum_s: float = 0.0

    def add(self, wait_s: float) -> None:
        """One more."""
        self.count += 1
        self.sum_s += wait_s


class Runner:
    """Runs an engine `time_scale` times faster than real. `run` is a task that lives as long as the worker.

    `lag_s` adds up the time by which the process fell behind for good: a worker that cannot keep its pace.
    `first_tokens` are waits from arrival to first token, `token_gaps` from each token to the next.
    """

    def __init__(self, engine: Engine, time_scale: float, faults: Faults) -> None:
        self.engine = engine
        self.time_scale = time_scale
        self.faults = faults
        self.lag_s = 0.0
        self.first_tokens = Waits()
        self.token_gaps = Waits()
        self._work = asyncio.Event()
        self._left: list[Sequence] = []  # while the engine hung

    def add(self, sequence: Sequence) -> None:
        """A request enters the engine's own queue."""
        sequence.told_s = time.monotonic()
        self.engine.add(sequence)
        self._work.set()

    def cancel(self, sequence: Sequence) -> None:
        """Who asked for it has left; an engine that hangs learns of it when it goes on."""
        if self.faults.unhung.is_set():
            self.engine.cancel(sequence)
        else:
            self._left.append(sequence)

    async def _unhung(self) -> None:
        await self.faults.unhung.wait()
        for sequence in self._left:
            self.engine.cancel(sequence)
        self._left.clear()

    async def run(self) -> None:
        """Iterate for ever; sleeps while there is nothing to do."""
        start_s = time.monotonic()
        while True:
            await self._unhung()
            duration_s = self.engine.begin()
            if duration_s is None:
                self._work.clear()
                await self._work.wait()
                start_s = time.monotonic()
                continue
            end_s = start_s + duration_s * self.faults.slowdown / self.time_scale
            await asyncio.sleep(max(0.0, end_s - time.monotonic()))
            await self._unhung()
            now_s = time.monotonic()
            for sequence in self.engine.complete():
                self._tell(sequence, now_s)
            late_s = now_s - end_s
            if late_s > LONGEST_LAG_S:
                self.lag_s += late_s
                end_s += late_s
            start_s = end_s

    def _tell(self, sequence: Sequence, now_s: float) -> None:
        """This request has one more token."""
        (self.first_tokens if sequence.generated == 1 else self.token_gaps).add(now_s - sequence.told_s)
        sequence.told_s = now_s
        if sequence.wake is not None:
            sequence.wake()
