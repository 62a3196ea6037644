"""Who waits for a worker, and where: in the policy's queue, apart from it, or to be sent by load."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from bidroute.core.fleet import Fleet
from bidroute.core.requests import Request
from bidroute.errors import NeverFitsError
from bidroute.policies import Controller
from bidroute.router.roster import Roster
from bidroute.router.sequences import Sequences
from bidroute.router.tickets import RefusedError, Ticket
from bidroute.router.totals import Counts
from bidroute.router.workers import Worker

UNTIMED_S = 0.1  # how long somebody may wait without a timer
READMITTED = 256  # at once of those who waited for a worker: all of a long queue would hold up every stream


class WaitingRoom:
    """Everybody who is not released yet. Whoever leaves unserved is told why through `Ticket.release`.

    `tickets` are those of all requests in the router, by id; they are entered and taken out here while they wait.
    Of those `apart`, the first `to_readmit` have not been looked at since something changed.
    """

    def __init__(self, roster: Roster, tickets: dict[int, Ticket], counts: Counts, clock: Callable[[], float]) -> None:
        self.waiting: dict[int, asyncio.Future[Worker]] = {}
        self.apart: dict[int, Ticket] = {}  # waiting, but not in the policy's queue: no worker could run it now
        self.by_load: dict[int, Ticket] = {}  # waiting, and to be sent to a worker with room whatever the policy says
        self.for_prefill: dict[int, Ticket] = {}  # waiting for a prefill worker first
        self.to_readmit = 0
        self.sequences = Sequences(roster)
        self._untimed: list[tuple[int, float]] = []  # who came lately, and until when it may wait
        self._roster = roster
        self._tickets = tickets
        self._counts = counts
        self._clock = clock

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, ticket_id: int) -> bool:
        return ticket_id in self.waiting

    # --- coming and going -------------------------------------------------------------------------------------------

    def enter(self, ticket: Ticket) -> None:
        """It waits for the policy. Raises RefusedError where no worker of the fleet could ever run it."""
        self._enqueue(ticket)
        self._note(ticket)

    def enter_by_load(self, ticket: Ticket) -> None:
        """It waits for any worker with room."""
        self.by_load[ticket.id] = ticket
        self._note(ticket)

    def enter_for_prefill(self, ticket: Ticket) -> None:
        """It waits for a prefill worker; one taken back from elsewhere keeps its place among those that wait."""
        self.for_prefill[ticket.id] = ticket
        if ticket.id not in self.waiting:
            self._note(ticket)

    def enter_unprefilled(self, ticket: Ticket) -> None:
        """It waits for the policy after all: no prefill worker is left."""
        del self.for_prefill[ticket.id]
        self.apart[ticket.id] = ticket

    def _note(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket
        self.waiting[ticket.id] = ticket.release = asyncio.get_running_loop().create_future()

    async def released(self, ticket: Ticket, max_wait_s: float) -> Worker:
        """Wait until it is released, and where to. Raises RefusedError when that took `max_wait_s` since its arrival,
        or its own deadline."""
        assert ticket.release is not None
        limit_s = min(ticket.job.deadline_s, max_wait_s) - (self._clock() - ticket.arrival_s)
        if limit_s > UNTIMED_S:
            self._untimed.append((ticket.id, self._clock() + limit_s))
        else:
            self._time(ticket.id, limit_s)
        return await ticket.release

    def time_the_rest(self) -> None:
        """Whoever came lately and waits still gets a timer; most are released before it would be worth one. To be
        called every `UNTIMED_S` at the latest."""
        untimed, self._untimed = self._untimed, []
        now_s = self._clock()
        for ticket_id, until_s in untimed:
            if ticket_id in self.waiting:
                self._time(ticket_id, until_s - now_s)

    def _time(self, ticket_id: int, limit_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(max(limit_s, 0.0), self._expire, ticket_id)
        self.waiting[ticket_id].add_done_callback(lambda _: timer.cancel())

    def _expire(self, ticket_id: int) -> None:
        if ticket_id in self.waiting:
            waited_s = self._clock() - self._tickets[ticket_id].arrival_s
            reason = f"no worker had room for it within {waited_s:.1f} s"
            self.refuse(ticket_id, RefusedError(503, "waited_too_long", reason, self._roster.drain_s(len(self))))

    def release(self, ticket: Ticket, worker: Worker) -> None:
        """Its lease is open: tell whoever waits for it."""
        future = self.waiting.pop(ticket.id)
        if not future.done():  # else the client has just left, and `cancelled` is about to come
            future.set_result(worker)

    def release_for_prefill(self, ticket: Ticket, worker: Worker) -> None:
        """Its prefill worker was chosen."""
        del self.for_prefill[ticket.id]
        self.release(ticket, worker)

    def leave(self, ticket: Ticket) -> asyncio.Future[Worker]:
        """Take it out, unserved; what waits for its release is returned, to be told why."""
        future = self.waiting.pop(ticket.id)
        self._tickets.pop(ticket.id, None)
        self.take_back(ticket)
        ticket.let_go_prefill()
        return future

    def take_back(self, ticket: Ticket) -> None:
        """Out of the place where it waits; it is still one of those that wait."""
        for place in (self.apart, self.by_load, self.for_prefill):
            if place.pop(ticket.id, None) is not None:
                return
        self._roster.of(ticket.job.model).cancelled(ticket.id)

    def hurry(self, ticket: Ticket) -> None:
        """From the policy's queue to those that go by load, which take the next room there is."""
        if self._roster.started is None:
            return
        controller = self._roster.of(ticket.job.model)
        if ticket.id in controller.state.queue:
            controller.cancelled(ticket.id)
            self.by_load[ticket.id] = ticket

    def refuse(self, ticket_id: int, error: RefusedError) -> None:
        """Send it away."""
        future = self.leave(self._tickets[ticket_id])
        self._counts.refused(error)
        if not future.done():
            future.set_exception(error)

    # --- in the policy's queue, or not ------------------------------------------------------------------------------

    def _enqueue(self, ticket: Ticket) -> None:
        """Into the policy's queue; apart from it while no worker that could run it takes requests.

        Raises RefusedError where no worker of the fleet ever could, at its full size.
        """
        if self._roster.started is None:
            self.apart[ticket.id] = ticket
            return
        self.fit_prompt(ticket)
        controller = self._roster.of(ticket.job.model)
        largest_tokens = controller.state.fleet.largest_kv_tokens
        if ticket.prompt_tokens >= largest_tokens:
            self.apart[ticket.id] = ticket
            return
        try:
            prompt_tokens = self.sequences.footprint_tokens(ticket, largest_tokens - 1)
            controller.enqueue(self._clock(), _request(ticket, prompt_tokens, controller.state.fleet))
        except NeverFitsError:  # by what a predictor is certain of
            self.apart[ticket.id] = ticket

    def fit_prompt(self, ticket: Ticket) -> None:
        """Hold the prompt against the largest worker. Raises RefusedError where it is certain not to fit."""
        model, most_tokens = ticket.job.model, 0
        for worker in self._roster.workers.values():
            if worker.serves(model):
                most_tokens = max(most_tokens, worker.usable_kv_tokens - 1)
                if ticket.prompt_tokens <= most_tokens:
                    return
        if not most_tokens:
            return
        if ticket.job.prompt_tokens is not None:
            reason = f"the prompt has {ticket.prompt_tokens} tokens; the largest worker holds {most_tokens}"
            raise RefusedError(400, "never_fits", reason)
        ticket.prompt_tokens = max(most_tokens, 1)  # an estimate refuses nobody: the worker knows better

    def reestimate(self, ticket: Ticket, prompt_tokens: int) -> None:
        """Its prompt is now believed to have so many tokens; it waits apart where no worker could run that now.

        Who waits apart already stays there until a `readmit`.
        """
        ticket.prompt_tokens = prompt_tokens
        self.fit_prompt(ticket)
        if any(ticket.id in place for place in (self.apart, self.by_load, self.for_prefill)):
            return
        controller = self._roster.of(ticket.job.model)
        largest_tokens = controller.state.fleet.largest_kv_tokens
        controller.reestimated(ticket.id, self.sequences.footprint_tokens(ticket, largest_tokens - 1))
        if ticket.prompt_tokens >= largest_tokens:
            controller.cancelled(ticket.id)
            self.apart[ticket.id] = ticket

    def readmit(self) -> None:
        """Whoever waits apart for want of a worker joins the queue, now and in calls of `readmit_some` to come."""
        self.to_readmit = len(self.apart)
        self.readmit_some()

    def readmit_some(self) -> None:
        """Let the next part of them in."""
        some = list(itertools.islice(self.apart.values(), min(self.to_readmit, READMITTED)))
        self.to_readmit = self.to_readmit - len(some) if some else 0
        for ticket in some:  # those that still find no worker go to the end of `apart`
            del self.apart[ticket.id]
            try:
                self._enqueue(ticket)
            except RefusedError as error:
                self.apart[ticket.id] = ticket
                self.refuse(ticket.id, error)

    def set_apart_stranded(self) -> None:
        """Whoever fits no worker that is left waits apart until one comes, or its time is up."""
        several = False
        for controller in self._roster.controllers():
            for ticket_id in controller.stranded():
                controller.cancelled(ticket_id)
                self.apart[ticket_id] = self._tickets[ticket_id]
                several |= self._tickets[ticket_id].job.choices > 1
        if several:  # their sequences need not all run at once
            self.readmit()

    def rehome(self, controllers: list[Controller]) -> None:
        """Whoever waits at one of these controllers, and should not any more, waits apart, to be readmitted.

        The workers have changed, and with them who serves which model.
        """
        for controller in controllers:
            for ticket_id in controller.state.queue.ids.tolist():
                ticket = self._tickets[ticket_id]
                if self._roster.of(ticket.job.model) is not controller:
                    controller.cancelled(ticket_id)
                    self.apart[ticket_id] = ticket

    def set_aside(self, controller: Controller) -> None:
        """After a decision that failed half-way: who was not told of its lease goes by load, and so does the oldest of
        the others, so that nobody who makes a policy fail can hold up the rest."""
        state = controller.state
        aside = [ticket_id for ticket_id in self.waiting if ticket_id in state.fleet]
        if len(state.queue):
            aside.append(int(state.queue.ids[int(state.queue.arrival_s.argmin())]))
        for ticket_id in aside:
            self.sequences.close(self._tickets[ticket_id])
            controller.cancelled(ticket_id)
            self.by_load[ticket_id] = self._tickets[ticket_id]


def _request(ticket: Ticket, prompt_tokens: int, fleet: Fleet) -> Request:
    job = ticket.job
    # An engine cuts what its model is too short for; then the length is not what the body says.
    exact_tokens = job.exact_tokens if fleet.fits(prompt_tokens + job.exact_tokens) else 0
    return Request(
        ticket.id,
        ticket.arrival_s,
        prompt_tokens,
        job.max_tokens,
        None,
        job.priority,
        job.tenant,
        job.ttft_slo_s,
        job.e2e_slo_s,
        exact_tokens,
    )
