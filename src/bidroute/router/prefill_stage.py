"""What comes before the decode fleet's queue where prefill workers are configured: who is prefilled, when and where.

A request waits here until a prefill worker has room, and until the decode fleet is near enough to taking it: a prefill
worker keeps the KV of a prompt only for so long. Once prefilled the request waits in the policy's queue as any other;
it goes ahead of the policy's order when the KV's time runs out, and is prefilled again rather than sent too late.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable

from bidroute.router.prefill_log import PrefillLog
from bidroute.router.prefill_pool import LeaseStage, PrefillLease, PrefillLoad, PrefillPool
from bidroute.router.roster import Roster
from bidroute.router.state import PrefillStep
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.totals import Counts
from bidroute.router.waiting_room import WaitingRoom
from bidroute.router.workers import Worker

log = logging.getLogger("bidroute.router")

AHEAD_SHARE = 0.25  # of the KV's time: what decode workers have ended in it lately may be prefilled ahead
FREE_SHARE = 0.25  # of what looks free on decode workers, while prefilled requests wait: the policy keeps it for others
LEAST_AHEAD = 1.0  # requests: the next place to become free should not wait for a prefill
URGENT_SHARE = 0.6  # of the KV's time: from then on the request takes the next room, whatever the policy says
LAST_SHARE = 0.8  # of the KV's time: from then on it is too late: to begin to fetch takes time as well
LOOK_S = 0.2  # a release that comes later than this after the last look looks again first
LOOKED_AT = 16  # of those in line, where the first finds no room: others may be for other workers


class _Freed:
    """How many requests, with how many prompt tokens, have left decode workers in about the last `memory_s`."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._requests = 0.0
        self._tokens = 0.0
        self._at_s = 0.0

    def add(self, now_s: float, tokens: int) -> None:
        self._requests, self._tokens = self.lately(now_s)
        self._requests += 1.0
        self._tokens += tokens
        self._at_s = now_s

    def lately(self, now_s: float) -> tuple[float, float]:
        keep = math.exp(-max(now_s - self._at_s, 0.0) / self._memory_s)
        return self._requests * keep, self._tokens * keep


class PrefillStage:
    """Sends requests to prefill workers, and looks after those whose KV waits there.

    `prompt` is called when decisions are to be made anew. Nothing here costs anything while `busy` is False.
    """

    def __init__(
        self,
        roster: Roster,
        room: WaitingRoom,
        counts: Counts,
        clock: Callable[[], float],
        lease_s: float,
        prompt: Callable[[], None],
    ) -> None:
        self.pool = PrefillPool(clock, lease_s)
        self.log = PrefillLog()
        self.held_by = ""  # why the first in line was not sent at the last look
        self._roster = roster
        self._room = room
        self._counts = counts
        self._clock = clock
        self._prompt = prompt
        self._line: list[tuple[float, float, int]] = []  # a heap of (−priority, arrival, ticket id); some have left
        self._prefilled: dict[int, Ticket] = {}  # those that wait no more are dropped when they are met
        self._freed = _Freed(AHEAD_SHARE * lease_s)
        self._looked_s = clock()

    @property
    def on(self) -> bool:
        """Whether there are prefill workers at all, here or to come."""
        return bool(self.pool)

    @property
    def busy(self) -> bool:
        """Whether there is anything to look after."""
        return bool(self._prefilled or self.pool)

    def wants(self, job: Job) -> bool:
        """Whether this request is prefilled by a prefill worker rather than where it decodes."""
        return self.on and job.can_split and self.pool.serves(job.model)

    # --- in line -----------------------------------------------------------------------------------------------------

    def enter(self, ticket: Ticket) -> None:
        """It waits for its prefill. Raises RefusedError where no worker could ever take it."""
        self._room.fit_prompt(ticket)
        most_tokens = self.pool.largest_prompt_tokens()
        if most_tokens is not None and ticket.prompt_tokens > most_tokens:
            if ticket.job.prompt_tokens is not None:
                reason = f"the prompt has {ticket.prompt_tokens} tokens; the largest prefill worker holds {most_tokens}"
                raise RefusedError(400, "never_fits", reason)
            ticket.prompt_tokens = max(most_tokens, 1)  # an estimate refuses nobody: the worker knows better
        self._room.enter_for_prefill(ticket)
        self._queue(ticket)

    def again(self, ticket: Ticket, reason: str) -> None:
        """What was prefilled for it is of no use any more, and it waits for another prefill, ahead of later ones."""
        self._counts.metrics.prefilled_again(reason)
        log.warning("prefilling again", extra={"fields": {"request_id": ticket.job.request_id, "reason": reason}})
        self._room.enter_for_prefill(ticket)
        self._queue(ticket)

    def retry(self, ticket: Ticket, decoded: bool) -> None:
        """A worker failed on it; `decoded`: a decode worker, which may have fetched the KV already."""
        if decoded:
            self.again(ticket, "failure")
        else:
            self._room.enter_for_prefill(ticket)
            self._queue(ticket)

    def _queue(self, ticket: Ticket) -> None:
        self.log.waits(ticket, self._clock())
        heapq.heappush(self._line, (-ticket.job.priority, ticket.arrival_s, ticket.id))
        if len(self._line) > 2 * len(self._room.for_prefill) + LOOKED_AT:
            self._line = [entry for entry in self._line if entry[2] in self._room.for_prefill]
            heapq.heapify(self._line)

    def release(self) -> None:
        """Send as many to prefill workers as have room there, in order, while the decode fleet keeps up."""
        blocked: list[tuple[float, float, int]] = []
        models: set[str] = set()
        self.held_by = ""
        while self._line:
            entry = self._line[0]
            ticket = self._room.for_prefill.get(entry[2])
            if ticket is not None and not self._decode_keeps_up(ticket):
                self.held_by = "decode"
                break
            heapq.heappop(self._line)
            if ticket is None:
                continue
            # Of each model the first in line holds back the others: a long prompt must come to its room at last.
            lease = None if ticket.job.model in models else self._sent(ticket)
            if lease is None:
                self.held_by = self.held_by or "prefill workers"
                models.add(ticket.job.model)
                blocked.append(entry)
                if len(blocked) == LOOKED_AT:
                    break
        for entry in blocked:
            heapq.heappush(self._line, entry)

    def _sent(self, ticket: Ticket) -> PrefillLease | None:
        load = self.pool.choose(ticket.job.model, ticket.prompt_tokens, ticket.prefill_tried)
        if load is None:
            return None
        ticket.prefill = self.pool.send(load, ticket.prompt_tokens)
        self.log.sent(ticket, self._clock())
        self._counts.metrics.prefill_sent(self._clock() - ticket.arrival_s)
        self._room.release_for_prefill(ticket, load.worker)
        return ticket.prefill

    def _decode_keeps_up(self, ticket: Ticket) -> bool:
        """Whether this prompt, once prefilled, would be taken well before its KV is given up.

        What is on its way (being prefilled, or waiting with its KV) must not exceed what decode workers have free plus
        what they become free of in a share of the KV's time, or one request. That one is not granted to a request that
        has waited in vain before.
        """
        controller = self._roster.started
        if controller is None or not len(controller.state.fleet.active):
            return False
        fleet = controller.state.fleet
        ways = [self.pool.total(stage) for stage in (LeaseStage.SENT, LeaseStage.WAITING)]
        requests, tokens = (sum(way) for way in zip(*ways, strict=True))
        g = fleet.active
        free_slots = int((fleet.batch_slots[g] - fleet.open_leases[g]).clip(0).sum())
        used_tokens = fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g]
        free_tokens = int((fleet.kv_tokens[g] - used_tokens).clip(0).sum())
        usable = FREE_SHARE if ways[1][0] else 1.0
        freed, freed_tokens = self._freed.lately(self._clock())
        least = 0.0 if ticket.kv_ran_out else LEAST_AHEAD
        if requests + 0.5 > usable * free_slots + max(freed, least):  # rounded: half a request is one
            return False
        return not requests or tokens + ticket.prompt_tokens <= usable * free_tokens + freed_tokens

    # --- the prefill's end -------------------------------------------------------------------------------------------

    def prefilled(self, ticket: Ticket, params: bytes, prompt_tokens: int | None) -> None:
        """Its prompt is processed, and it waits for a decode worker. Raises RefusedError where none could run it."""
        lease = ticket.prefill
        assert lease is not None
        ticket.prompt_tokens = prompt_tokens or ticket.prompt_tokens
        self.pool.hold(lease, params, ticket.prompt_tokens)
        worker, now_s = lease.worker, self._clock()
        self._counts.metrics.prefilled(worker.name, now_s - lease.sent_s)
        self.log.prefilled(ticket, now_s)
        if worker.breaker.success():
            log.info("prefill worker %s is back", worker.name)
            worker.joined_s = now_s
        self.waits(ticket)
        (self._room.enter_by_load if ticket.attempts else self._room.enter)(ticket)

    def waits(self, ticket: Ticket) -> None:
        """It waits for a decode worker, its KV for it."""
        assert ticket.prefill is not None
        ticket.prefill.become(LeaseStage.WAITING)
        self._prefilled[ticket.id] = ticket

    def handed_over(self, ticket: Ticket) -> None:
        """A decode worker was chosen, which will fetch the KV."""
        lease = ticket.prefill
        assert lease is not None
        lease.become(LeaseStage.HANDED)
        self._counts.metrics.handed_over(ticket.released_s - lease.prefilled_s)
        self.log.handed_over(ticket, ticket.released_s)

    def ended(self, lease: PrefillLease) -> None:
        """A request has left its decode worker, which has room for another."""
        self._freed.add(self._clock(), lease.tokens)

    def failed(self, ticket: Ticket, failure: Failure, detail: str) -> None:
        """Its prefill worker did not serve it."""
        lease = ticket.prefill
        assert lease is not None
        ticket.let_go_prefill()
        self.log.failed(ticket, failure)
        worker, now_s = lease.worker, self._clock()
        ticket.prefill_tried += (worker.name,)
        self._counts.metrics.failed(worker.name, failure)
        if failure is Failure.BACK_PRESSURE:
            worker.pressed(now_s, lease.load.requests[LeaseStage.SENT])
        elif failure is not Failure.CLIENT and worker.breaker.fault(now_s, certain=failure is Failure.STALLED):
            self._out(worker, detail)

    # --- time passes -------------------------------------------------------------------------------------------------

    def in_time(self, lease: PrefillLease) -> bool:
        """Whether its KV may still be fetched."""
        return self._clock() - lease.prefilled_s <= LAST_SHARE * self.pool.lease_s

    def look(self, at_least_every_s: float = 0.0) -> None:
        """Let requests go first whose KV's time runs out, and prefill those again for which it is too late.

        To be called all the time; nothing is done where the last look was less than so long ago.
        """
        now_s, lease_s = self._clock(), self.pool.lease_s
        if now_s - self._looked_s < at_least_every_s:
            return
        self._looked_s = now_s
        for ticket, lease in self._waiting():
            waited_s = now_s - lease.prefilled_s
            if not self.in_time(lease):
                ticket.kv_ran_out = True
                self._take_back(ticket, lease, LeaseStage.ABANDONED, "lease")
            elif waited_s > URGENT_SHARE * lease_s:
                self._room.hurry(ticket)
        self.pool.expire()
        self._go_on_without()

    def _waiting(self) -> list[tuple[Ticket, PrefillLease]]:
        """Who waits for a decode worker with KV ready."""
        waiting = []
        for ticket_id, ticket in list(self._prefilled.items()):
            lease = ticket.prefill
            if ticket.id == ticket_id and lease is not None and ticket_id in self._room:
                waiting.append((ticket, lease))
            else:
                del self._prefilled[ticket_id]
        return waiting

    def _take_back(self, ticket: Ticket, lease: PrefillLease, stage: LeaseStage, reason: str) -> None:
        """What was prefilled for a waiting request cannot be used: out of the decode fleet's queue, to the line."""
        lease.become(stage)
        ticket.prefill = None
        self._room.take_back(ticket)
        self.again(ticket, reason)

    # --- workers ----------------------------------------------------------------------------------------------------

    def add_worker(self, worker: Worker) -> None:
        """A prefill worker joins. Raises ConfigError when its name is taken."""
        self.pool.add(worker)
        self._prompt()

    def load(self, name: str) -> PrefillLoad:
        """The prefill worker of this name, with what it has to do. Raises KeyError."""
        return self.pool.loads[name]

    def drain_worker(self, name: str) -> None:
        """It finishes what it has and takes nothing new; the KV it holds can be fetched."""
        self.load(name).worker.draining = True
        self._prompt()

    def rename_worker(self, worker: Worker, name: str) -> None:
        """Another worker is to have its name."""
        load = self.pool.loads.pop(worker.name)
        worker.name = name
        self.pool.loads[name] = load

    def resize_worker(self, name: str, batch_slots: int, kv_tokens: int) -> None:
        """Its capacity is another."""
        worker = self.load(name).worker
        worker.batch_slots, worker.kv_tokens = batch_slots, kv_tokens
        self._prompt()

    def remove_worker(self, name: str) -> None:
        """It is gone, with all KV that it held."""
        load = self.pool.loads.pop(name)
        self._drop_waiting(load.worker)
        self._go_on_without()

    def expected_no_more(self, name: str) -> None:
        """A worker that has not answered yet is not waited for any more; unknown ones are ignored."""
        self.pool.expected.discard(name)
        self._go_on_without()

    def _go_on_without(self) -> None:
        """Where no prefill worker is left nobody needs to wait for one."""
        if not self.on and self._room.for_prefill:
            for ticket in list(self._room.for_prefill.values()):
                self._room.enter_unprefilled(ticket)
            self._room.readmit()
            self._prompt()

    def worker_alive(self, worker: Worker) -> None:
        """It answered a scrape: an open breaker may now be half open."""
        if worker.breaker.alive(self._clock()):
            log.info("prefill worker %s answers again; trying one request", worker.name)
            self._prompt()

    def worker_dead(self, worker: Worker, detail: str) -> None:
        """It cannot be reached."""
        if worker.breaker.fault(self._clock(), certain=True):
            self._out(worker, detail)

    def _out(self, worker: Worker, detail: str) -> None:
        log.warning("prefill worker %s is out: %s", worker.name, detail)
        self._drop_waiting(worker)

    def worker_restarted(self, worker: Worker) -> None:
        """It was started anew: the KV it held is gone."""
        self._drop_waiting(worker)

    def _drop_waiting(self, worker: Worker) -> None:
        """Who waits with KV there is prefilled again, elsewhere."""
        for ticket, lease in self._waiting():
            if lease.worker is worker:
                self._take_back(ticket, lease, LeaseStage.CLOSED, "worker out")
        self._prompt()

    # --- what others look at ----------------------------------------------------------------------------------------

    def waiting_prefilled(self) -> int:
        """How many wait for a decode worker with their KV ready."""
        return self.pool.total(LeaseStage.WAITING)[0]

    def steps(self, request_id: str) -> list[PrefillStep]:
        """What became of this request's prefills, oldest first; what holds the first in line is said of all."""
        return self.log.of(request_id, self.held_by, self._clock(), self.pool.lease_s)
