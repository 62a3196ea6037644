"""Numba kernels of the price room. Shapes: G devices, b buckets, c classes, u starts, m sampled requests, n waiting.

Prices are normalised: `slot_price[g, b]` is the reward for all B_g slots of device g over one period of bucket b,
`kv_price[g, b]` for all its C_g tokens. Dividing by B_g or C_g gives the price of one slot or one token.
"""

from __future__ import annotations

import math

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def expected_use_of_devices(
    leases: IntArray,
    offset: IntArray,
    count: IntArray,
    devices: IntArray,
    batch_slots: IntArray,
    kv_tokens: IntArray,
    survival: FloatArray,
    edges_periods: IntArray,
    slots_left: FloatArray,
    kv_left: FloatArray,
) -> None:
    """What the open leases of `devices` leave free, as a fraction of capacity, at the middle of each bucket.

    `leases`, `offset` and `count` are the fleet's lease pool; `survival` [c, horizon+1]; the rows of `slots_left`
    and `kv_left`, both [G, b], that belong to `devices` are overwritten (negative where more is held than there is).
    """
    buckets = len(edges_periods) - 1
    last = survival.shape[1] - 1
    for g in devices:
        slots_left[g] = 1.0
        kv_left[g] = 1.0
        for row in range(offset[g], offset[g] + count[g]):
            decoded = leases[2, row]
            held = float(leases[1, row] + decoded + 1)
            now = survival[leases[3, row], min(decoded, last)]
            for b in range(buckets):
                ahead = (edges_periods[b] + edges_periods[b + 1] - 1) // 2
                if leases[4, row] > 0:
                    alive = 1.0 if decoded + ahead < leases[4, row] else 0.0
                elif now > 1e-12:
                    alive = survival[leases[3, row], min(decoded + ahead, last)] / now
                else:
                    alive = 0.0
                if alive <= 0.0:
                    break
                slots_left[g, b] -= alive / batch_slots[g]
                kv_left[g, b] -= alive * (held + ahead) / kv_tokens[g]


@kernel
def exact_column(
    output_tokens: int, start: int, edges_periods: IntArray, slots: FloatArray, growth: FloatArray
) -> None:
    """The column of a request of known length that starts `start` periods from now; overwrites both, [b]."""
    buckets = len(edges_periods) - 1
    for b in range(buckets):
        low = min(max(edges_periods[b] - start, 0), output_tokens)
        high = output_tokens if b == buckets - 1 else min(max(edges_periods[b + 1] - start, 0), output_tokens)
        slots[b] = high - low
        growth[b] = 0.5 * (high * (high + 1.0) - low * (low + 1.0))


@kernel
def demand_at_prices(
    slot_price: FloatArray,
    kv_price: FloatArray,
    batch_slots: IntArray,
    kv_tokens: IntArray,
    period_s: FloatArray,
    open_devices: IntArray,
    edges_periods: IntArray,
    starts_periods: IntArray,
    class_slots: FloatArray,
    class_growth: FloatArray,
    class_tokens: FloatArray,
    prompt_tokens: IntArray,
    length_class: IntArray,
    exact_tokens: IntArray,
    reward: FloatArray,
    weight: FloatArray,
    earliest: IntArray,
    decay_s: float,
    slot_demand: FloatArray,
    kv_demand: FloatArray,
) -> int:
    """Each sampled request takes its best (device, start) at these prices; add up what they would occupy.

    Starts are the lower edges of buckets, in order, so a column that starts at u is empty before bucket u. Sample i
    stands for `weight[i]` requests. Its reward at a start falls with the completion time as
    decay/(decay + delay + service). The demands, [G, b], are fractions of capacity averaged over the
    bucket and are overwritten. Returns how many samples found a start of positive net value.
    """
    buckets = len(edges_periods) - 1
    starts = len(starts_periods)
    slot_demand[:, :] = 0.0
    kv_demand[:, :] = 0.0
    taken = 0
    exact_slots = np.zeros(buckets)
    exact_growth = np.zeros(buckets)
    for i in range(len(prompt_tokens)):
        best_value = 0.0
        best_device = -1
        best_start = 0
        for u in range(starts):
            if starts_periods[u] < earliest[i]:
                continue
            if exact_tokens[i] > 0:
                exact_column(exact_tokens[i], starts_periods[u], edges_periods, exact_slots, exact_growth)
                slots, growth, tokens = exact_slots, exact_growth, float(exact_tokens[i])
            else:
                slots, growth = class_slots[length_class[i], u], class_growth[length_class[i], u]
                tokens = class_tokens[length_class[i]]
            for g in open_devices:
                if prompt_tokens[i] + 1 > kv_tokens[g]:
                    continue
                completion_s = (starts_periods[u] - earliest[i] + tokens) * period_s[g]
                cost = 0.0
                for b in range(u, buckets):
                    if slots[b] <= 0.0:
                        break
                    cost += slots[b] * slot_price[g, b] / batch_slots[g]
                    cost += (prompt_tokens[i] * slots[b] + growth[b]) * kv_price[g, b] / kv_tokens[g]
                value = reward[i] * decay_s / (decay_s + completion_s) - cost
                if value > best_value:
                    best_value = value
                    best_device = g
                    best_start = u
        if best_device < 0:
            continue
        taken += 1
        if exact_tokens[i] > 0:
            exact_column(exact_tokens[i], starts_periods[best_start], edges_periods, exact_slots, exact_growth)
            slots, growth = exact_slots, exact_growth
        else:
            slots, growth = class_slots[length_class[i], best_start], class_growth[length_class[i], best_start]
        for b in range(best_start, buckets):
            width = edges_periods[b + 1] - edges_periods[b]
            slot_demand[best_device, b] += weight[i] * slots[b] / (batch_slots[best_device] * width)
            held = prompt_tokens[i] * slots[b] + growth[b]
            kv_demand[best_device, b] += weight[i] * held / (kv_tokens[best_device] * width)
    return taken


@kernel
def projected_step(
    price: FloatArray,
    mean_square: FloatArray,
    demand: FloatArray,
    capacity_left: FloatArray,
    step: float,
    forget: float,
) -> None:
    """p ← max(0, p + step · excess / rms(excess)), row by row over [G, b], in place.

    `excess` = demand − capacity left, in fractions of capacity; `mean_square` is its running mean square, which
    gives the step the excess's sign and relative size and no unit.
    """
    for g in range(price.shape[0]):
        for b in range(price.shape[1]):
            excess = demand[g, b] - capacity_left[g, b]
            mean_square[g, b] = forget * mean_square[g, b] + (1.0 - forget) * excess * excess
            scale = math.sqrt(mean_square[g, b]) + 1e-12
            price[g, b] = max(0.0, price[g, b] + step * excess / scale)
