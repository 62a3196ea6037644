"""The dispatcher: what happens to requests, when to decide, and the ledger of what runs where.

Everything here runs on one event loop, but for price updates, which run in a thread on a frozen copy of the state.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from functools import partial

from bidroute.lengths import build_predictor
from bidroute.policies import Controller, Policy, PolicySettings, build_policy
from bidroute.router.by_load import least_busy
from bidroute.router.decisions import Decisions
from bidroute.router.estimates import Estimates
from bidroute.router.membership import Membership
from bidroute.router.metrics import RouterMetrics
from bidroute.router.off_loop import Updates
from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.prefill_stage import PrefillStage
from bidroute.router.releases import Releases
from bidroute.router.roster import Roster
from bidroute.router.settings import RouterSettings
from bidroute.router.streams import Streams
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.totals import Counts
from bidroute.router.waiting_room import WaitingRoom
from bidroute.router.workers import Worker

log = logging.getLogger("bidroute.router")

TICK_S = 0.05  # between decisions that nothing but time has prompted
FEW_WAITING = 64  # up to so many an arrival is decided on at once; among more, at the next tick


class Dispatcher:
    """Takes jobs, releases each to a worker when the policy says so, and keeps the ledger true.

    Methods may only be called on the event loop, `start` first. `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        settings: RouterSettings,
        clock: Callable[[], float] = time.monotonic,
        metrics: RouterMetrics | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = metrics or RouterMetrics()
        self.tickets: dict[int, Ticket] = {}
        self.draining = False
        self._counts = Counts(self.metrics)
        self.totals = self._counts.totals
        policy = PolicySettings(settings.seed, settings.objective)
        self.roster = Roster(partial(build_policy, settings.policy, policy), build_predictor(settings.lengths))
        self.workers = self.roster.workers
        self.room = WaitingRoom(self.roster, self.tickets, self._counts, clock)
        self.estimates = Estimates(self.roster, self.room, self.tickets, self.metrics)
        self.prefill = PrefillStage(self.roster, self.room, self._counts, clock, settings.kv_lease_s, self._prompt)
        self.members = Membership(self.roster, self.room, self.tickets, clock, self._prompt)
        self._releases = Releases(self.roster, self.room, self.tickets, self._counts, clock, self.prefill.handed_over)
        self.log = self._releases.log
        self._updates = Updates(self.metrics, settings.update_s, off_loop=settings.updates_off_loop)
        self._decisions = Decisions(self.roster, self.room, self.prefill, self._releases, self._updates, clock)
        self._streams = Streams(self.roster, self.room, self.metrics, clock)
        self._ids = itertools.count()
        self._prompted = False
        self._ticking: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to decide, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def stop(self) -> None:
        """Refuse all that waits and decide no more; what runs is the caller's."""
        self.draining = True
        for ticket_id in list(self.room.waiting):
            self.room.refuse(ticket_id, _shutting_down())
        if self._ticking:
            self._ticking.cancel()
        self._updates.stop()

    def _tick(self) -> None:
        """Time alone changes what is best: decide again while somebody waits."""
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        self.members.fit_capacities()
        self.room.time_the_rest()
        if self.room.to_readmit:
            self.room.readmit_some()
        if self.prefill.busy:
            self.prefill.look()
        self.estimates.renew_some()
        if self.room.waiting:
            self._prompt()
        else:
            self._decisions.rest()

    def _prompt(self) -> None:
        """Decide as soon as everything that has happened is known."""
        if not self._prompted:
            self._prompted = True
            self._loop.call_soon(self._decide)

    def _decide(self) -> None:
        self._prompted = False
        self._decisions.decide()

    # --- what others look at ----------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """The policy that decides, for models that every worker serves."""
        return self.roster.policy

    def set_policy(self, make_policy: Callable[[], Policy]) -> None:
        """Go on under another policy, made anew for each part of the fleet; the queue and the leases stay."""
        self.roster.set_policy(make_policy)
        if self.roster.started is not None:
            self._prompt()

    @property
    def splits(self) -> bool:
        """Whether prompts are processed on workers of their own."""
        return self.prefill.on

    @property
    def controller(self) -> Controller:
        """The whole fleet's controller; there is one as soon as there was a worker."""
        return self.roster.controller

    def controller_of(self, ticket: Ticket) -> Controller:
        """The controller that it waits at, or has waited at."""
        return self.roster.of(ticket.job.model)

    @property
    def held(self) -> dict[str, int]:
        """How many the last decision let wait, by reason."""
        return self._releases.held

    def waiting(self) -> list[Ticket]:
        """Everybody who waits."""
        return [self.tickets[ticket_id] for ticket_id in self.room.waiting]

    def waits(self, ticket: Ticket) -> bool:
        """Whether it has not been released yet."""
        return ticket.id in self.room

    def in_queue(self, ticket: Ticket) -> bool:
        """Whether it waits for the policy, which can say why; others wait for a worker that could run them."""
        return self.roster.started is not None and ticket.id in self.controller_of(ticket).state.queue

    def least_busy(self, model: str) -> Worker:
        """A worker for a request that has no price, such as an embedding. Raises RefusedError when there is none."""
        worker = least_busy(self.workers.values(), self.controller.state.fleet, model) if self.workers else None
        if worker is None:
            raise RefusedError(503, "no_worker", "no worker takes such requests now", 5.0)
        return worker

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> Ticket:
        """A request arrived. Raises RefusedError when it cannot be taken."""
        self._counts.arrived()
        try:
            return self._take(job)
        except RefusedError as error:
            self._counts.refused(error)
            raise

    def _take(self, job: Job) -> Ticket:
        if self.draining:
            raise _shutting_down()
        waiting = len(self.room)
        if waiting >= self.settings.max_waiting:
            raise RefusedError(429, "queue_full", f"{waiting} requests wait already", self.roster.drain_s(waiting))
        if self.workers and not any(worker.serves(job.model) for worker in self.workers.values()):
            raise RefusedError(404, "model_not_found", f"no worker serves the model {job.model!r}")
        ticket = Ticket(next(self._ids), job, self.clock(), self.estimates.of(job))
        (self.prefill if self.prefill.wants(job) else self.room).enter(ticket)
        if len(self.room) <= FEW_WAITING:
            self._prompt()
        return ticket

    async def released(self, ticket: Ticket) -> Worker:
        """Wait until the policy releases it, and where to. Raises RefusedError when it has waited too long."""
        return await self.room.released(ticket, self.settings.max_wait_s)

    def started(self, ticket: Ticket) -> None:
        """Its first output came: the prompt is processed."""
        self._streams.started(ticket)

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        """It has `tokens` of output so far, over all its choices."""
        self._streams.progressed(ticket, tokens)

    def finished(self, ticket: Ticket, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """It ended by itself, with this true usage, over all prompts and choices, where the worker said."""
        if not self._runs(ticket):
            return
        prefilled = ticket.prefill is not None
        if ticket.prefill is not None:
            ticket.prefill.become(LeaseStage.CLOSED)
        worker, silent = self._end(ticket), math.isnan(ticket.started_s)
        now_s, tokens = self.clock(), max(output_tokens or ticket.output_tokens, 1)
        job = ticket.job
        self._counts.finished(ticket, now_s, prompt_tokens or ticket.prompt_tokens * job.prompts, tokens)
        if worker is None:  # it was removed from the fleet, and has ended its request all the same
            return
        each = -(-tokens // job.choices)
        lease = self.controller_of(ticket).finished(now_s, ticket.id, each)
        self.metrics.output_predicted(self.roster.mean_tokens(lease.length_class), each)
        if prompt_tokens is not None and not prefilled:
            self.estimates.learned(ticket, prompt_tokens // job.prompts)
        if silent and not prefilled:  # its answer came whole
            worker.prompts.processed(*job.all_prompts)
        if worker.breaker.success():
            log.info("worker %s is back", worker.name)
            worker.joined_s = now_s
            self.members.follow(worker)
        self._prompt()

    def prefilled(self, ticket: Ticket, params: bytes, prompt_tokens: int | None) -> None:
        """Its prefill worker has processed the prompt, of this true length where known; `params` are for the decode
        worker to fetch the KV with. It waits for that one: `released` is to be awaited again. Raises RefusedError."""
        if prompt_tokens is not None:
            self.estimates.learned(ticket, prompt_tokens)
        try:
            if self.draining:
                raise _shutting_down()
            self.prefill.prefilled(ticket, params, prompt_tokens)
        except RefusedError as error:
            self._end(ticket)
            self._counts.refused(error)
            raise
        self._prompt()

    def cancelled(self, ticket: Ticket) -> None:
        """The client left, or the proxy gave up; waiting or running."""
        if ticket.id in self.room:
            self.room.leave(ticket).cancel()
        elif ticket.id not in self.tickets:
            return
        elif self._end(ticket) is not None:
            self.controller.cancelled(ticket.id)
        self._counts.cancelled()
        self._prompt()

    def failed(self, ticket: Ticket, failure: Failure, detail: str = "", *, reached: bool = True) -> None:
        """Its worker did not serve it: the lease is closed. `retry` may follow; else this is its end.

        `reached` False says for certain that the worker never had it, so that it fetched no KV either.
        """
        if not self._runs(ticket):
            return
        ticket.failure = failure
        self._loop.call_soon(self._count_failed, ticket, ticket.id)
        if ticket.prefill is not None and ticket.prefill.stage is LeaseStage.SENT:
            self.prefill.failed(ticket, failure, detail)
        worker = self._end(ticket, keeps_prefill=not reached)
        if worker is None:
            return
        self.controller.cancelled(ticket.id)
        self.metrics.failed(worker.name, failure)
        now_s = self.clock()
        if failure is Failure.BACK_PRESSURE:
            worker.pressed(now_s, int(self.controller.state.fleet.open_leases[worker.device]))
            self.members.fit_capacities()
        elif failure is not Failure.CLIENT and worker.breaker.fault(now_s, certain=failure is Failure.STALLED):
            log.warning("worker %s is out: %s", worker.name, detail)
            self.members.follow(worker)
        self._prompt()

    def _count_failed(self, ticket: Ticket, failed_id: int) -> None:
        """Its failure was its end, unless it has been tried again since: then it has another id."""
        if ticket.id == failed_id and ticket.failure is not None:
            ticket.let_go_prefill()
            self._counts.failed(ticket, ticket.failure)

    def retry(self, ticket: Ticket) -> None:
        """Right after `failed`: back into the queue, to go to another worker if there is one; `released` is to be
        awaited again."""
        self._counts.retried(ticket.failure)
        ticket.id = next(self._ids)
        decoded = not math.isnan(ticket.released_s)
        ticket.worker, ticket.started_s, ticket.output_tokens, ticket.failure = None, math.nan, 0, None
        ticket.released_s, ticket.reserved = math.nan, None
        if ticket.prefill is not None and not self.prefill.in_time(ticket.prefill):
            ticket.let_go_prefill()
        if ticket.prefill is None and self.prefill.wants(ticket.job):
            self.prefill.retry(ticket, decoded)
        else:
            if ticket.prefill is not None:  # its KV is still there to be fetched
                self.prefill.waits(ticket)
            self.room.enter_by_load(ticket)
        if self.draining:
            self.room.refuse(ticket.id, _shutting_down())
        else:
            self._prompt()

    def _runs(self, ticket: Ticket) -> bool:
        """Whether it was released and has not ended."""
        return ticket.id in self.tickets and ticket.id not in self.room

    def _end(self, ticket: Ticket, keeps_prefill: bool = False) -> Worker | None:
        """Forget the ticket; its worker, or None when its lease was closed already."""
        self.tickets.pop(ticket.id, None)
        if ticket.prefill is not None:
            if ticket.worker is not None:
                self.prefill.ended(ticket.prefill)
            if not keeps_prefill:
                ticket.let_go_prefill()
        self._streams.ended(ticket)
        worker, ticket.worker = ticket.worker, None
        if ticket.siblings:
            self.room.sequences.close(ticket)
        return worker


def _shutting_down() -> RefusedError:
    return RefusedError(503, "shutting_down", "the router is shutting down", 5.0)
