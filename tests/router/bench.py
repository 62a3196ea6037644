"""A dispatcher on a clock of its own, and what a proxy would do with it."""

from __future__ import annotations

import asyncio

from bidroute.router.calibration import TOLD_CAUTION
from bidroute.router.dispatcher import Dispatcher
from bidroute.router.tickets import Job, Ticket
from bidroute.router.workers import Worker

JOB = Job("m", prompt_bytes=400)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A dispatcher, and what a proxy would do with it."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self.dispatcher, self.clock = dispatcher, clock
        dispatcher.estimates.told({"m"}, 0.25 / TOLD_CAUTION)  # four bytes a token

    def worker(self, name: str, slots: int = 2, kv_tokens: int = 1000, models: str | None = None) -> Worker:
        """One that joins; `models` are separated by spaces."""
        known = None if models is None else frozenset(models.split())
        worker = Worker(name, f"http://{name}", models=known, batch_slots=slots, kv_tokens=kv_tokens)
        self.dispatcher.members.add_worker(worker)
        return worker

    async def where(self, ticket: Ticket) -> str | None:
        """The worker it is released to, None while it waits."""
        if self.dispatcher.workers:
            self.dispatcher.members.fit_capacities()
        self.dispatcher._prompt()
        await self.settle()
        return ticket.worker.name if ticket.worker else None

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    def leases(self) -> int:
        return int(self.dispatcher.controller.state.fleet.open_leases.sum())
