"""How long a request waits before it counts as overdue, tracked from the fleet itself.

A fixed number of seconds fits one workload. By Little's law the requests inside the system over their arrival rate
is the mean time they spend in it; a multiple of that fits every workload. It steadies itself: favouring short
requests too much lowers the number inside, hence the threshold, and the long ones become overdue sooner.
"""

from __future__ import annotations

import math

MEMORY_ARRIVALS = 300.0


class SojournTracker:
    """A running mean, over recent arrivals, of requests inside / arrival rate: the mean sojourn in seconds."""

    def __init__(self, memory_arrivals: float = MEMORY_ARRIVALS) -> None:
        self.mean_s = 0.0
        self._memory_arrivals = memory_arrivals
        self._seen = 0

    def observe(self, inside: int, rate_per_s: float, arrivals: int = 1) -> None:
        """`arrivals` came since the last call and now find `inside` requests waiting or running."""
        if rate_per_s <= 0.0:
            return
        self._seen += arrivals
        weight = max(arrivals / self._seen, 1.0 - math.exp(-arrivals / self._memory_arrivals))
        self.mean_s += weight * (inside / rate_per_s - self.mean_s)
