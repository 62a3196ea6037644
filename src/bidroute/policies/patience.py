"""How long a request waits before it counts as overdue, tracked from the fleet itself.

A fixed number of seconds fits one workload. By Little's law the requests inside the system over their arrival rate
is the mean time they spend in it; a multiple of that fits every workload. It steadies itself: favouring short
requests too much lowers the number inside, hence the threshold, and the long ones become overdue sooner.

Patience buys a shorter mean by letting the large requests wait. Where nobody can tell which ones will be long, and only
the prompts differ, it buys less, and in long queues nothing: then less of it is had.
"""

from __future__ import annotations

import math

MEMORY_ARRIVALS = 300.0
RESOLVED = 0.3  # `LengthModel.resolution` from which on all of the patience pays; predictions off by e reach this
BLIND_SHARE = 0.4  # of the patience beyond 1, where lengths are not told apart at all


def trusted_patience(patience: float, resolution: float) -> float:
    """The patience to have when lengths are told apart this well (0 not at all, 1 exactly)."""
    share = BLIND_SHARE + (1.0 - BLIND_SHARE) * min(resolution / RESOLVED, 1.0)
    return min(patience, 1.0) + max(patience - 1.0, 0.0) * share


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
