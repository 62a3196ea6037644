"""How long a request waits before it counts as overdue, tracked from the fleet itself.

A fixed number of seconds fits one workload. By Little's law the requests inside the system over their arrival rate
is the mean time they spend in it; a multiple of that fits every workload. It steadies itself: favouring short
requests too much lowers the number inside, hence the threshold, and the long ones become overdue sooner.

Patience buys a shorter mean by letting the large requests wait. Where nobody can tell which ones will be long, and only
the prompts differ, it buys less, and in long queues nothing; where predictions err, much patience keeps those waiting
longest whose length was overrated; and where hardly anybody waits there is nothing to reorder, so that only the tail
grows. In all three cases less of it is had.
"""

from __future__ import annotations

import math

MEMORY_ARRIVALS = 300.0
RESOLVED = 0.3  # `LengthModel.resolution` from which on patience pays as if lengths were known; off by e reaches this
BLIND_PATIENCE, BLIND_SHARE = 1.6, 0.4  # so much pays where lengths are not told apart: this share of what is beyond 1
TOLD_PATIENCE = 2.5  # so much pays from `RESOLVED` on; more only as lengths become certain
CROWDED = 0.4  # the share of their time that requests spend waiting from which on all of the patience pays


def trusted_patience(patience: float, resolution: float, waiting_share: float) -> float:
    """The patience to have when lengths are told apart this well (0 not at all, 1 exactly) in such a crowd.

    `waiting_share`: of the time that requests spend in the system, what they wait.
    """
    least, excess = min(patience, 1.0), max(patience - 1.0, 0.0)
    blind = BLIND_SHARE * min(excess, BLIND_PATIENCE - 1.0)
    told = min(excess, TOLD_PATIENCE - 1.0)
    certainty = max((resolution - RESOLVED) / (1.0 - RESOLVED), 0.0) ** 4
    trusted = blind + (told - blind) * min(resolution / RESOLVED, 1.0) + (excess - told) * certainty
    return least + trusted * min(waiting_share / CROWDED, 1.0)


class SojournTracker:
    """Running means, over recent arrivals, of requests inside / arrival rate, the mean sojourn in seconds, and of
    requests waiting / arrival rate, the part of it that they wait."""

    def __init__(self, memory_arrivals: float = MEMORY_ARRIVALS) -> None:
        self.mean_s = 0.0
        self.wait_s = 0.0
        self._memory_arrivals = memory_arrivals
        self._seen = 0

    @property
    def waiting_share(self) -> float:
        """How much of their time inside requests wait; 1 before anything was seen: a run may begin with a burst."""
        return self.wait_s / self.mean_s if self.mean_s > 0.0 else 1.0

    def observe(self, waiting: int, running: int, rate_per_s: float, arrivals: int = 1) -> None:
        """`arrivals` came since the last call and now find so many requests waiting and running."""
        if rate_per_s <= 0.0:
            return
        self._seen += arrivals
        weight = max(arrivals / self._seen, 1.0 - math.exp(-arrivals / self._memory_arrivals))
        self.mean_s += weight * ((waiting + running) / rate_per_s - self.mean_s)
        self.wait_s += weight * (waiting / rate_per_s - self.wait_s)
