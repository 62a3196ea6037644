"""Release who waits: by the policy's decision, or by load where there is no price to go by."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from bidroute.core.requests import Request
from bidroute.policies import Controller
from bidroute.policies.base import Explanation
from bidroute.router.by_load import choose_by_load, choose_to_reserve
from bidroute.router.decision_log import DecisionLog
from bidroute.router.roster import Roster
from bidroute.router.tickets import RefusedError, Ticket
from bidroute.router.totals import Counts
from bidroute.router.waiting_room import WaitingRoom
from bidroute.router.workers import Worker

EASY_SHARE = 0.5  # of all slots

log = logging.getLogger("bidroute.router")


class Releases:
    """Opens leases for those in the room and tells them; `on_hand_over` hears of each that was prefilled elsewhere."""

    def __init__(
        self,
        roster: Roster,
        room: WaitingRoom,
        tickets: Mapping[int, Ticket],
        counts: Counts,
        clock: Callable[[], float],
        on_hand_over: Callable[[Ticket], None],
    ) -> None:
        self.log = DecisionLog(clock())
        self._held: dict[Controller, dict[str, int]] = {}  # at the last decision of each
        self._roster = roster
        self._room = room
        self._tickets = tickets
        self._counts = counts
        self._clock = clock
        self._on_hand_over = on_hand_over
        self._reserved: set[int] = set()  # devices that keep their room for one who needs several slots

    @property
    def held(self) -> dict[str, int]:
        """How many the last decisions let wait, by reason."""
        self._held = {one: held for one in self._roster.controllers() if (held := self._held.get(one))}
        total: Counter[str] = Counter()
        for held in self._held.values():
            total.update(held)
        return dict(total)

    def easy(self) -> bool:
        """Whether nobody has had to wait: the last decision held nobody, and most slots are free."""
        slots = sum(worker.batch_slots for worker in self._roster.workers.values())
        return not self.held and len(self._tickets) < EASY_SHARE * slots

    def by_policy(self, controller: Controller, now_s: float) -> None:
        """Release whom the policy sends to the workers with room."""
        fleet = controller.state.fleet
        if controller.dispatches_on_arrival:
            ready = fleet.accepting()
        else:
            ready = [g for g in fleet.accepting() if fleet.open_leases[g] < fleet.batch_slots[g]]
            ready = [g for g in ready if g not in self._reserved]
        if not ready or not len(controller.state.queue):
            return
        explained = self._explained(controller, now_s, ready)
        before_s = time.perf_counter()
        decision = controller.decide(now_s, ready)
        held = {str(reason): count for reason, count in decision.held.items()}
        self._held[controller] = held
        self._counts.metrics.decided(time.perf_counter() - before_s, held)
        self.log.decided(now_s, decision, explained, self._tickets, self._roster.by_device)
        several = False
        for assignment in decision.assignments:
            ticket, worker = self._tickets[assignment.request_id], self._roster.by_device[assignment.device]
            if ticket.job.choices == 1 or controller.dispatches_on_arrival:
                self._send(ticket, worker)
                continue
            several = True  # one slot is free there for certain, but it needs more
            controller.cancelled(ticket.id)
            ticket.reserved = worker
            self._room.by_load[ticket.id] = ticket
        if several:
            self.by_load(controller)

    def by_load(self, controller: Controller) -> None:
        """Retries go first, each to the least busy worker not tried yet, or to a tried one if there is no other; and
        those that the policy has let go and that need several slots: a worker keeps its free ones for each of them."""
        fleet, workers = controller.state.fleet, self._roster.workers.values()
        self._reserved.clear()
        for ticket in list(self._room.by_load.values()):
            worker = choose_by_load(ticket, workers, fleet, self._reserved)
            if worker is None:
                if ticket.job.choices > 1:
                    self._reserve(ticket, choose_to_reserve(ticket, workers, fleet, self._reserved))
                continue
            request = Request(ticket.id, ticket.arrival_s, ticket.prompt_tokens, ticket.job.max_tokens)
            try:
                fleet.open(request, worker.device, self._roster.predictor.predict(request).length_class)
            except Exception:
                log.exception("a request cannot be sent")
                self._room.refuse(ticket.id, RefusedError(500, "router_failed", "the router failed on this request"))
                continue
            del self._room.by_load[ticket.id]
            self._send(ticket, worker)

    def _reserve(self, ticket: Ticket, worker: Worker | None) -> None:
        ticket.reserved = worker
        if worker is not None:
            self._reserved.add(worker.device)

    def _explained(self, controller: Controller, now_s: float, ready: list[int]) -> dict[int, Explanation]:
        try:
            return self.log.explain(now_s, controller, ready)
        except Exception:  # a decision is worth more than the account of it
            log.exception("a decision could not be explained")
            return {}

    def _send(self, ticket: Ticket, worker: Worker) -> None:
        """The lease is open: tell whoever waits for it."""
        self._roster.controller.started(ticket.id, prefilled=ticket.prefill is not None)
        if ticket.job.choices > 1:
            self._room.sequences.open(ticket, worker)
        ticket.worker, ticket.released_s = worker, self._clock()
        if ticket.prefill is not None:
            self._on_hand_over(ticket)
        else:
            worker.prompts.sent(ticket.job.model, *ticket.job.all_prompts)
        ticket.attempts.append(worker.name)
        self._counts.released(ticket, worker)
        self._room.release(ticket, worker)
