"""Compiled choice between devices. Shapes: G devices of the fleet, D considered, m waiting requests."""

from __future__ import annotations

import math

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def find_faster(
    pace_s: FloatArray,
    totals: IntArray,
    active: IntArray,
    offered: IntArray,
    faster_by: float,
    least_kv_tokens: int,
    found: IntArray,
) -> int:
    """Write the fastest alternatives to `offered` [D] into `found`, as many as it holds; returns how many there are.

    An alternative is `active`, not offered, in the middle of a period (it runs something), has a free slot and
    `least_kv_tokens` of free KV, and its `pace_s` [G] is `faster_by` times that of the slowest one offered. Fastest
    first, equal ones by index. `totals` are the fleet's.
    """
    slowest_s = 0.0
    for g in offered:
        slowest_s = max(slowest_s, pace_s[g])
    count = 0
    for g in active:
        if pace_s[g] * faster_by > slowest_s or not 0 < totals[0, g] < totals[5, g]:
            continue
        if totals[8, g] - totals[2, g] - totals[3, g] < least_kv_tokens:
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
def rank_by_best_device(slot_cost: FloatArray, kv_cost: FloatArray, value: FloatArray, ratio: FloatArray) -> None:
    """Give each request the place it has on its best device: the one where its `value` is highest; all [D, m].

    Its other devices come after, by the share of its reward that it would lose there:
    ratio ← best ratio / (1 + (best value − value)/best reward). A ratio of −∞ stays.
    """
    devices, m = value.shape
    for i in range(m):
        best = -1
        for d in range(devices):
            if ratio[d, i] > -math.inf and (best < 0 or value[d, i] > value[best, i]):
                best = d
        if best < 0:
            continue
        cost = slot_cost[best, i] + kv_cost[best, i]
        most, reward = ratio[best, i], max(value[best, i] + cost, 1e-12 * cost)  # a small reward may be rounded away
        for d in range(devices):
            if ratio[d, i] > -math.inf:
                ratio[d, i] = most / (1.0 + (value[best, i] - value[d, i]) / reward)
