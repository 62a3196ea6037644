"""One decision after another: those who go by load, the policy's for each part of the fleet, and prices beside them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bidroute.policies import Controller
from bidroute.router.off_loop import Updates
from bidroute.router.prefill_stage import LOOK_S, PrefillStage
from bidroute.router.releases import Releases
from bidroute.router.roster import Roster
from bidroute.router.waiting_room import WaitingRoom

log = logging.getLogger("bidroute.router")


class Decisions:
    """Decides when told to. Whatever goes wrong in a decision, the next one comes."""

    def __init__(
        self,
        roster: Roster,
        room: WaitingRoom,
        prefill: PrefillStage,
        releases: Releases,
        updates: Updates,
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._room = room
        self._prefill = prefill
        self._releases = releases
        self._updates = updates
        self._clock = clock
        self._turn = -1

    def decide(self) -> None:
        """Release what is to be released now."""
        if self._roster.started is None or not self._room.waiting:
            return
        controllers = self._roster.controllers()
        self._turn += 1  # who shares a device with others is not always the last to be asked
        for k in range(len(controllers)):
            controller = controllers[(k + self._turn) % len(controllers)]
            try:
                if k == 0:
                    self._who_does_not_ask_the_policy(controller)
                now_s = self._clock()
                updates = self._updates_of(controller)
                if updates.due(now_s):
                    updates.refresh(controller, now_s, seldom=self._releases.easy())
                self._releases.by_policy(controller, now_s)
            except Exception:
                log.exception("a decision failed; the request that waits longest goes by load")
                self._room.set_aside(controller)
        if self._prefill.on:
            self._prefill.release()

    def rest(self) -> None:
        """Nobody waits: prices must be seen to fall all the same, and lengths go on being learned."""
        for controller in self._roster.controllers():
            self._updates_of(controller).refresh(controller, self._clock(), seldom=True)

    def _who_does_not_ask_the_policy(self, controller: Controller) -> None:
        if self._prefill.busy:
            self._prefill.look(LOOK_S)
        self._releases.by_load(controller)

    def _updates_of(self, controller: Controller) -> Updates:
        return self._updates if controller is self._roster.started else self._updates.beside(controller)
