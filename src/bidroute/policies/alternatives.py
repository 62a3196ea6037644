"""Where a request would do best: among the devices offered, and those that could take it a moment later.

A decision is about the devices that stand at a period's start, but the best device for a request may be in the
middle of one. So a decision considers those as well, as if they could be had for the price of one period's wait, and
what it would release to them it holds. They are offered within that period, and then it starts there.

Two judgements are kept apart. The value, the reduced cost a*(p), says *where*: the device on which a request is worth
most net of price. The reward per price, on that device, says *who first*.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute.core.fleet import Fleet
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.alternatives_kernels import find_faster

# A device no more than this much faster is not waited for: between devices that are alike, one that can start now
# beats any other, and deciding stays cheap.
FASTER_BY = 1.25
MOST_ALTERNATIVES = 8  # the fastest; a decision's time grows with them


class Considered(NamedTuple):
    """`devices` int64[D]: those offered, `offered` in number, then the alternatives to them, not offered yet.

    `wait_s` float64[D] until each can start a request: 0 for those offered, else one period.
    """

    devices: IntArray
    offered: int
    wait_s: FloatArray


def consider(fleet: Fleet, offered: IntArray, pace_s: FloatArray, least_kv_tokens: int) -> Considered:
    """The offered devices and the faster ones with room for a request of `least_kv_tokens`, by `pace_s` [G]."""
    found = np.empty(MOST_ALTERNATIVES, dtype=np.int64)
    count = find_faster(pace_s, fleet.totals, fleet.active, offered, FASTER_BY, least_kv_tokens, found)
    if not count:
        return Considered(offered, len(offered), np.zeros(len(offered)))
    devices = np.concatenate([offered, found[:count]])
    wait_s = fleet.period_s[devices]
    wait_s[: len(offered)] = 0.0
    return Considered(devices, len(offered), wait_s)
