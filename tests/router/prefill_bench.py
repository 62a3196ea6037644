"""A bench with prefill workers, for the tests of what happens before the decode fleet."""

from __future__ import annotations

from typing import Any

from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.tickets import Job, Ticket
from bidroute.router.workers import PREFILL, Worker
from tests.router.bench import Bench

SPLIT = Job("m", prompt_bytes=400, can_split=True)
PARAMS = b'{"do_remote_prefill":true}'
LEASE_S = 10.0


def exact(tokens: int, **more: Any) -> Job:
    return Job("m", 0, prompt_tokens=tokens, can_split=True, **more)


class Pair(Bench):
    """A bench with prefill workers too, and what a proxy would do with them."""

    def prefill_worker(self, name: str, slots: int = 4, kv_tokens: int = 2000) -> Worker:
        worker = Worker(name, f"http://{name}", batch_slots=slots, kv_tokens=kv_tokens, role=PREFILL)
        self.dispatcher.prefill.add_worker(worker)
        return worker

    async def sent(self, ticket: Ticket) -> str | None:
        """The prefill worker that has it, None while it waits for one."""
        self.dispatcher._prompt()
        await self.settle()
        lease = ticket.prefill
        return lease.worker.name if lease is not None and lease.stage is LeaseStage.SENT else None

    async def prefilled(self, ticket: Ticket, tokens: int | None = None) -> None:
        """Its prefill worker is done."""
        assert await self.sent(ticket) is not None
        self.dispatcher.prefilled(ticket, PARAMS, tokens)
        await self.settle()

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.dispatcher._tick()

    def counts(self) -> dict[str, int]:
        pool = self.dispatcher.prefill.pool
        return {stage.value: pool.total(stage)[0] for stage in LeaseStage if pool.total(stage)[0]}


def stage(ticket: Ticket) -> LeaseStage | None:
    return ticket.prefill.stage if ticket.prefill is not None else None


async def occupied(pair: Pair, slots: int = 2) -> list[Ticket]:
    """The free slots of the decode worker are taken, by requests that need no prefill worker."""
    tickets = [pair.dispatcher.submit(Job("m", 40)) for _ in range(slots)]
    await pair.settle()
    assert pair.leases() == 2
    return tickets


async def waiting(pair: Pair, job: Job = SPLIT) -> tuple[Ticket, list[Ticket]]:
    """A prefilled request that waits, and those that occupy the decode worker."""
    others = await occupied(pair)
    ticket = pair.dispatcher.submit(job)
    await pair.prefilled(ticket)
    assert stage(ticket) is LeaseStage.WAITING
    return ticket, others
