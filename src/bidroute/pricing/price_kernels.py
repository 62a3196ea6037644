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
def expected_use(
    prompt_tokens: IntArray,
    decoded_tokens: IntArray,
    length_class: IntArray,
    exact_tokens: IntArray,
    survival: FloatArray,
    edges_periods: IntArray,
    slots: FloatArray,
    kv: FloatArray,
) -> None:
    """Expected slots and KV tokens that n open leases still hold, averaged over each bucket (its middle period).

    The first four arrays have shape [n]; `survival` [c, horizon+1]; `edges_periods` [b+1]; the results `slots`
    and `kv`, both [b], are overwritten.
    """
    buckets = len(edges_periods) - 1
    last = survival.shape[1] - 1
    slots[:] = 0.0
    kv[:] = 0.0
    for i in range(len(prompt_tokens)):
        held = float(prompt_tokens[i] + decoded_tokens[i] + 1)
        for b in range(buckets):
            ahead = (edges_periods[b] + edges_periods[b + 1] - 1) // 2
            if exact_tokens[i] > 0:
                alive = 1.0 if decoded_tokens[i] + ahead < exact_tokens[i] else 0.0
            else:
                now = survival[length_class[i], min(decoded_tokens[i], last)]
                later = survival[length_class[i], min(decoded_tokens[i] + ahead, last)]
                alive = later / now if now > 1e-12 else 0.0
            if alive <= 0.0:
                break
            slots[b] += alive
            kv[b] += alive * (held + ahead)


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
    earliest: IntArray,
    weight: float,
    decay_s: float,
    slot_demand: FloatArray,
    kv_demand: FloatArray,
) -> int:
    """Each sampled request takes its best (device, start) at these prices; add up what they would occupy.

    Every one of the m samples stands for `weight` requests. Its reward at a start falls with the completion
    time as decay/(decay + delay + service). The demands, [G, b], are fractions of capacity averaged over the
    bucket and are overwritten. Returns how many samples found a start of positive net value.
    """
    buckets = len(edges_periods) - 1
    starts = len(starts_periods)
    slot_demand[:, :] = 0.0
    kv_demand[:, :] = 0.0
    taken = 0
    slots = np.zeros(buckets)
    growth = np.zeros(buckets)
    for i in range(len(prompt_tokens)):
        best_value = 0.0
        best_device = -1
        best_start = 0
        for u in range(starts):
            if starts_periods[u] < earliest[i]:
                continue
            if exact_tokens[i] > 0:
                exact_column(exact_tokens[i], starts_periods[u], edges_periods, slots, growth)
                tokens = float(exact_tokens[i])
            else:
                slots[:] = class_slots[length_class[i], u]
                growth[:] = class_growth[length_class[i], u]
                tokens = class_tokens[length_class[i]]
            for g in open_devices:
                if prompt_tokens[i] + 1 > kv_tokens[g]:
                    continue
                completion_s = (starts_periods[u] - earliest[i] + tokens) * period_s[g]
                cost = 0.0
                for b in range(buckets):
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
            exact_column(exact_tokens[i], starts_periods[best_start], edges_periods, slots, growth)
        else:
            slots[:] = class_slots[length_class[i], best_start]
            growth[:] = class_growth[length_class[i], best_start]
        for b in range(buckets):
            width = edges_periods[b + 1] - edges_periods[b]
            slot_demand[best_device, b] += weight * slots[b] / (batch_slots[best_device] * width)
            held = prompt_tokens[i] * slots[b] + growth[b]
            kv_demand[best_device, b] += weight * held / (kv_tokens[best_device] * width)
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


@kernel
def costs_on_device(
    slot_price: FloatArray,
    kv_price: FloatArray,
    batch_slots: int,
    kv_tokens: int,
    edges_periods: IntArray,
    class_slots: FloatArray,
    class_growth: FloatArray,
    prompt_tokens: IntArray,
    length_class: IntArray,
    exact_tokens: IntArray,
    slot_cost: FloatArray,
    kv_cost: FloatArray,
) -> None:
    """Price of starting each of n waiting requests on one device now, in reward units, by resource; O(1) each.

    `slot_price` and `kv_price` are that device's rows, [b]; `class_*` the columns for a start now, [c, b]. The
    results, [n], are overwritten. A request of known length is priced from prefix sums of p and of k·p.
    """
    buckets = len(edges_periods) - 1
    classes = class_slots.shape[0]
    slot_alpha = np.zeros(classes)
    kv_alpha = np.zeros(classes)
    kv_beta = np.zeros(classes)
    for c in range(classes):
        for b in range(buckets):
            slot_alpha[c] += class_slots[c, b] * slot_price[b] / batch_slots
            kv_alpha[c] += class_growth[c, b] * kv_price[b] / kv_tokens
            kv_beta[c] += class_slots[c, b] * kv_price[b] / kv_tokens
    slot_sum = np.zeros(buckets + 1)
    kv_sum = np.zeros(buckets + 1)
    kv_moment = np.zeros(buckets + 1)
    for b in range(buckets):
        low = float(edges_periods[b])
        high = float(edges_periods[b + 1])
        slot_sum[b + 1] = slot_sum[b] + slot_price[b] * (high - low)
        kv_sum[b + 1] = kv_sum[b] + kv_price[b] * (high - low)
        kv_moment[b + 1] = kv_moment[b] + kv_price[b] * 0.5 * (high * (high + 1.0) - low * (low + 1.0))
    for i in range(len(prompt_tokens)):
        if exact_tokens[i] == 0:
            c = length_class[i]
            slot_cost[i] = slot_alpha[c]
            kv_cost[i] = kv_alpha[c] + prompt_tokens[i] * kv_beta[c]
            continue
        end = float(exact_tokens[i])
        b = min(np.searchsorted(edges_periods, exact_tokens[i], side="right") - 1, buckets - 1)
        low = float(edges_periods[b])
        slot_cost[i] = (slot_sum[b] + slot_price[b] * (end - low)) / batch_slots
        length_price = kv_sum[b] + kv_price[b] * (end - low)
        growth_price = kv_moment[b] + kv_price[b] * 0.5 * (end * (end + 1.0) - low * (low + 1.0))
        kv_cost[i] = (prompt_tokens[i] * length_price + growth_price) / kv_tokens
