"""What a policy sees: the queue, the fleet and the length model. No clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class RoutingState:
    """The state a policy decides on. Policies read it; only the controller changes it."""

    queue: WaitingQueue
    fleet: Fleet
    lengths: LengthModel

    def frozen(self) -> RoutingState:
        """Queue and fleet as they are now, for a price update in another thread; the length model is shared."""
        return RoutingState(self.queue.frozen(), self.fleet.frozen(), self.lengths)
