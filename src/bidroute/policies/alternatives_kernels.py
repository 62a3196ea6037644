"""Compiled choice between devices. Shapes: G devices of the fleet, D offered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.fleet import OPEN_LEASES, PREFILL_TOKENS, FleetColumns
from bidroute.core.pace_kernels import PERIOD_S
from bidroute.core.queue import FloatArray, IntArray

# A device no more than this much faster is not waited for. Where many wait, one that can start now beats any that is
# about as fast, and deciding stays cheap; where few do, the emptiest of some that are alike is worth a period's wait,
# unless that period is one in which it processes prompts: those are long.
FASTER_BY = 1.25
FASTER_BY_WHERE_FEW_WAIT = 1.02
FEW_WAIT = 16
MOST_ALTERNATIVES = 8  # the fastest; a decision's time grows with them


class Choice(NamedTuple):
    """The `devices` int64[D] of a decision: the first `offered` of them can start a request at once, the others, which
    are not offered now, after `later_s` float64[D] (0 for those offered)."""

    devices: IntArray
    offered: int
    later_s: FloatArray


@kernel
def find_faster(
    pace_s: FloatArray,
    fleet: FleetColumns,
    offered: IntArray,
    few_wait: bool,
    found: IntArray,
) -> int:
    """Write the fastest alternatives to `offered` [D] into `found`, as many as it holds; returns how many there are.

    An alternative is active, not offered, runs something, and its `pace_s` [G] is so much faster than that of the
    slowest one offered. Fastest first, equal ones by index.
    """
    open_leases, prefill_tokens = fleet.totals[OPEN_LEASES], fleet.totals[PREFILL_TOKENS]
    slowest_s = 0.0
    for g in offered:
        slowest_s = max(slowest_s, pace_s[g])
    count = 0
    for g in fleet.active:
        faster_by = FASTER_BY_WHERE_FEW_WAIT if few_wait and prefill_tokens[g] == 0 else FASTER_BY
        if pace_s[g] * faster_by > slowest_s or open_leases[g] == 0:
            continue
        is_offered = False
        for other in offered:
            is_offered = is_offered or other == g
        if is_offered or (count == len(found) and pace_s[found[count - 1]] <= pace_s[g]):
            continue
        place = min(count, len(found) - 1)
        while place > 0 and pace_s[found[place - 1]] > pace_s[g]:
            found[place] = found[place - 1]
            place -= 1
        found[place] = g
        count = min(count + 1, len(found))
    return count


@kernel
def with_alternatives(pace_s: FloatArray, fleet: FleetColumns, offered: IntArray, waiting: int) -> Choice:
    """The devices `offered` [D], and then the alternatives to them for `waiting` requests, each in one of its periods.

    `pace_s` float64[G] is what one request more would run at.
    """
    found = np.empty(MOST_ALTERNATIVES, dtype=np.int64)
    count = find_faster(pace_s, fleet, offered, waiting <= FEW_WAIT, found)
    devices, later_s = np.empty(len(offered) + count, dtype=np.int64), np.zeros(len(offered) + count)
    devices[: len(offered)] = offered
    for k in range(count):
        devices[len(offered) + k], later_s[len(offered) + k] = found[k], fleet.moments[PERIOD_S, found[k]]
    return Choice(devices, len(offered), later_s)
