"""Where a request would do best: among the devices offered, and the faster ones that could take it later.

A decision is about the devices that stand at a period's start and have room, but the best device for a request may be
in the middle of a period, or full. So a decision considers faster devices as well: one in the middle of a period as if
it could be had for one period's wait, and one without room as if it could be had when its next requests end. What
would rather go there than to a device that could take it now is held.

Two judgements are kept apart. The value, the reduced cost a*(p), says *where* and *when*: the device and the start at
which a request is worth most net of price. The reward per price, on that device, says *who first*.
"""

from __future__ import annotations

from bidroute.core.fleet import Fleet
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.alternatives_kernels import Choice, with_alternatives


def consider(fleet: Fleet, offered: IntArray, pace_s: FloatArray, waiting: int) -> Choice:
    """The offered devices and the fastest ones that are faster and not offered, by `pace_s` float64[G], for `waiting`
    requests."""
    return with_alternatives(pace_s, fleet.columns(), offered, waiting)
