"""Release who waits: by the policy's decision, or by load where there is no price to go by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from bidroute.core.requests import Request
from bidroute.policies import Controller
from bidroute.policies.base import Explanation
from bidroute.router.by_load import choose_by_load
from bidroute.router.decision_log import DecisionLog
from bidroute.router.roster import Roster
from bidroute.router.tickets import RefusedError, Ticket
from bidroute.router.totals import Counts
from bidroute.router.waiting_room import WaitingRoom
from bidroute.router.workers import Worker

EASY_SHARE = 0.5  # of all slots

log = logging.getLogger("bidroute.router")


class Releases:
    """Opens leases for those in the room and tells them. `held` counts by reason whom the last decision let wait."""

    def __init__(
        self,
        roster: Roster,
        room: WaitingRoom,
        tickets: Mapping[int, Ticket],
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self.log = DecisionLog(clock())
        self.held: dict[str, int] = {}
        self._roster = roster
        self._room = room
        self._tickets = tickets
        self._counts = counts
        self._clock = clock

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
        if not ready or not len(controller.state.queue):
            return
        explained = self._explained(controller, now_s, ready)
        before_s = time.perf_counter()
        decision = controller.decide(now_s, ready)
        self.held = {str(reason): count for reason, count in decision.held.items()}
        self._counts.metrics.decided(time.perf_counter() - before_s, self.held)
        self.log.decided(now_s, decision, explained, self._tickets, self._roster.by_device)
        for assignment in decision.assignments:
            self._send(self._tickets[assignment.request_id], self._roster.by_device[assignment.device])

    def by_load(self, controller: Controller) -> None:
        """Retries go first, each to the least busy worker not tried yet, or to a tried one if there is no other."""
        fleet = controller.state.fleet
        for ticket in list(self._room.by_load.values()):
            worker = choose_by_load(ticket, self._roster.workers.values(), fleet)
            if worker is None:
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

    def _explained(self, controller: Controller, now_s: float, ready: list[int]) -> dict[int, Explanation]:
        try:
            return self.log.explain(now_s, controller, ready)
        except Exception:  # a decision is worth more than the account of it
            log.exception("a decision could not be explained")
            return {}

    def _send(self, ticket: Ticket, worker: Worker) -> None:
        """The lease is open: tell whoever waits for it."""
        self._roster.controller.started(ticket.id, prefilled=False)
        ticket.worker, ticket.released_s = worker, self._clock()
        ticket.attempts.append(worker.name)
        self._counts.released(ticket, worker)
        self._room.release(ticket, worker)
