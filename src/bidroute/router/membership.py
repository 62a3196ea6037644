"""Workers that join, change, drain, fail and leave: the fleet is kept in line, and whoever it concerns is told."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from bidroute.router.attempts import HungError
from bidroute.router.roster import Roster
from bidroute.router.tickets import Ticket
from bidroute.router.waiting_room import WaitingRoom
from bidroute.router.workers import Worker

log = logging.getLogger("bidroute.router")


class Membership:
    """What happens to workers that decode. `prompt` asks for a decision; methods are called on the event loop."""

    def __init__(
        self,
        roster: Roster,
        room: WaitingRoom,
        tickets: Mapping[int, Ticket],
        clock: Callable[[], float],
        prompt: Callable[[], None],
    ) -> None:
        self._roster = roster
        self._room = room
        self._tickets = tickets
        self._clock = clock
        self._prompt = prompt

    def add_worker(self, worker: Worker) -> None:
        """A worker joins with the capacity it has; it ramps up. Raises ConfigError when its name is taken."""
        something_runs = len(self._tickets) > len(self._room)
        elsewhere = self._roster.add(worker, self._clock() if something_runs else -math.inf)
        self.fit_capacities()
        self._room.rehome(elsewhere)
        self._room.readmit()
        self._prompt()

    def drain_worker(self, name: str) -> None:
        """It finishes what it has and takes nothing new."""
        worker = self._roster.worker(name)
        worker.draining = True
        self.follow(worker)

    def rename_worker(self, worker: Worker, name: str) -> None:
        """Another worker is to have its name."""
        self._roster.rename(worker, name)

    def resize_worker(self, name: str, batch_slots: int, kv_tokens: int) -> None:
        """Its capacity is another."""
        worker = self._roster.worker(name)
        worker.batch_slots, worker.kv_tokens = batch_slots, kv_tokens
        self.fit_capacities()
        self._room.set_apart_stranded()
        self._prompt()

    def remove_worker(self, name: str) -> list[Ticket]:
        """It is gone: its leases are closed and its tickets returned, for the proxy to retry or to end."""
        leases, elsewhere = self._roster.remove(name)
        gone = [self._tickets[lease.request_id] for lease in leases if lease.request_id in self._tickets]
        for ticket in gone:
            ticket.worker = None
            ticket.siblings.clear()
        self._room.set_apart_stranded()
        if elsewhere:
            self._room.rehome(elsewhere)
            self._room.readmit()
        return gone

    def worker_alive(self, worker: Worker) -> None:
        """It answered a scrape: an open breaker may now be half open."""
        if worker.breaker.alive(self._clock()):
            log.info("worker %s answers again; trying one request", worker.name)
            self.follow(worker)

    def worker_dead(self, worker: Worker, detail: str) -> None:
        """It cannot be reached."""
        if worker.breaker.fault(self._clock(), certain=True):
            log.warning("worker %s is out: %s", worker.name, detail)
            self.follow(worker)

    def worker_hangs(self, worker: Worker, silent_s: float) -> None:
        """Its engine stands still: it is out, and its requests end; those that have no byte yet are tried elsewhere."""
        self.worker_dead(worker, f"its engine has stood still for {silent_s:.1f} s")
        for ticket in [ticket for ticket in self._tickets.values() if ticket.worker is worker]:
            if ticket.stop is not None:
                ticket.stop(HungError(round(silent_s, 1)))

    def follow(self, worker: Worker) -> None:
        """Bring the fleet in line with what the worker may be sent."""
        self.fit_capacities()
        self._roster.follow(worker)
        if worker.accepts():
            self._room.readmit()
        else:
            self._room.set_apart_stranded()
        self._prompt()

    def fit_capacities(self) -> None:
        """Bring the fleet's capacities in line with what is believed of the workers now."""
        if self._roster.fit_capacities(self._clock()):
            self._room.readmit()
