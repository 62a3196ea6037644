"""Where a request would do best: among the devices offered, and the faster ones that could take it later.

A decision is about the devices that stand at a period's start and have room, but the best device for a request may be
in the middle of a period, or full. So a decision considers faster devices as well: one in the middle of a period as if
it could be had for one period's wait, and one without room as if it could be had when its next requests end. What
would rather go there than to a device that could take it now is held.

Two judgements are kept apart. The value, the reduced cost a*(p), says *where* and *when*: the device and the start at
which a request is worth most net of price. The reward per price, on that device, says *who first*.
"""

from __future__ import annotations

from typing import NamedTuple

from bidroute.core.fleet import Fleet
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.alternatives_kernels import with_alternatives


class Considered(NamedTuple):
    """`devices` int64[D]: those offered, `offered` in number, then the alternatives to them, not offered now.

    `wait_s` float64[D] until each can start a request that it has room for: 0 for those offered, else one period.
    """

    devices: IntArray
    offered: int
    wait_s: FloatArray


def consider(fleet: Fleet, offered: IntArray, pace_s: FloatArray) -> Considered:
    """The offered devices and the fastest ones that are faster and not offered, by `pace_s` float64[G]."""
    devices, wait_s = with_alternatives(pace_s, fleet.period_s, fleet.open_leases, fleet.active, offered)
    return Considered(devices, len(offered), wait_s)
