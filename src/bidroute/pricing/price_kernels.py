"""Numba kernels of the price room. Shapes: G devices, b buckets, c classes, u starts, m sampled requests, n waiting.

Prices are normalised: `slot_price[g, b]` is the reward for all B_g slots of device g over one period of bucket b,
`kv_price[g, b]` for all its C_g tokens. Dividing by B_g or C_g gives the price of one slot or one token. Likewise
`token_price[g, b]` for all the tokens of its iterations, on devices with a `token_budget[g]` > 0 (see `mixed_kernels`).
"""

from __future__ import annotations

import math

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.ledger_kernels import rest_of_prompt
from bidroute.core.queue import FloatArray, IntArray
from bidroute.pricing.mixed_kernels import add_prefill, chunk_tokens, prefill_delay, without_first

TIE = 1e-9  # of the reward: values no further apart are equal


@kernel
def expected_use_of_devices(
    leases: IntArray,
    offset: IntArray,
    count: IntArray,
    devices: IntArray,
    batch_slots: IntArray,
    kv_tokens: IntArray,
    token_budget: IntArray,
    survival: FloatArray,
    edges_periods: IntArray,
    slots_left: FloatArray,
    kv_left: FloatArray,
    tokens_left: FloatArray,
) -> None:
    """What the open leases of `devices` leave free, as a fraction of capacity, at the middle of each bucket.

    `leases`, `offset` and `count` are the fleet's lease pool; `survival` [c, horizon+1]; the rows of `slots_left`,
    `kv_left` and `tokens_left`, all [G, b], that belong to `devices` are overwritten (negative where more is held than
    there is). Where there is a token budget, prompts are processed one after the other, and a request decodes once its
    own is.
    """
    buckets = len(edges_periods) - 1
    last = survival.shape[1] - 1
    for g in devices:
        slots_left[g] = 1.0
        kv_left[g] = 1.0
        tokens_left[g] = 1.0
        budget, chunk, to_prefill = token_budget[g], chunk_tokens(token_budget[g], count[g]), 0
        for row in range(offset[g], offset[g] + count[g]):
            decoded = leases[2, row]
            held = float(leases[1, row] + decoded + 1)
            now = survival[leases[3, row], min(decoded, last)]
            rest, delay = rest_of_prompt(leases, row) if budget > 0 else 0, 0
            if rest > 0:
                to_prefill += rest
                delay = prefill_delay(to_prefill, chunk)
            for b in range(buckets):
                middle = (edges_periods[b] + edges_periods[b + 1] - 1) // 2
                ahead = max(middle - delay, 0)
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
                if budget > 0 and (rest == 0 or middle > delay):
                    tokens_left[g, b] -= alive / budget
        for b in range(buckets if to_prefill > 0 else 0):
            middle = (edges_periods[b] + edges_periods[b + 1] - 1) // 2
            tokens_left[g, b] -= min(max(to_prefill - chunk * middle, 0), chunk) / budget


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
def mixed_column(
    prompt: int,
    exact: int,
    class_slots: FloatArray,
    class_growth: FloatArray,
    chunk: int,
    start: int,
    edges_periods: IntArray,
    column: FloatArray,
) -> int:
    """The column of a request on a device with a token budget, which starts `start` periods from now.

    Overwrites `column` [3, b]: slot-periods, KV token-periods, and tokens in the budget. A request of unknown length
    has the columns [b] of its class from `start` on, as if decoding began at once: lengths are known far less well than
    a prefill takes. Returns the delay.
    """
    delay = prefill_delay(prompt, chunk)
    slots, held, used = column
    if exact > 0:
        exact_column(exact, start + delay, edges_periods, slots, held)
        first = start + delay
    else:
        slots[:], held[:] = class_slots, class_growth
        first = start
    for b in range(len(slots)):
        used[b] = slots[b]
        held[b] += prompt * slots[b]
    without_first(used, first, edges_periods)
    add_prefill(prompt, chunk, start, edges_periods, slots, held, used)
    return int(delay)


@kernel
def mixed_columns(
    request: IntArray,
    device: IntArray,
    start: IntArray,
    token_budget: IntArray,
    chunk: IntArray,
    prompt_tokens: IntArray,
    length_class: IntArray,
    exact_tokens: IntArray,
    class_slots: FloatArray,
    class_growth: FloatArray,
    starts_periods: IntArray,
    edges_periods: IntArray,
    use: FloatArray,
    delay: IntArray,
) -> None:
    """The columns of many starts, one for each entry of `request`, `device` and `start`, all [k].

    Overwrites `use` [k, 3, b] and `delay` [k] of those whose device has a token budget, and leaves the others alone;
    `chunk` [G] is what a device processes of a prompt per period.
    """
    for k in range(len(request)):
        i, g, u = request[k], device[k], start[k]
        if token_budget[g] > 0:
            delay[k] = mixed_column(
                prompt_tokens[i],
                exact_tokens[i],
                class_slots[length_class[i], u],
                class_growth[length_class[i], u],
                chunk[g],
                starts_periods[u],
                edges_periods,
                use[k],
            )


@kernel
def _price_of(column: FloatArray, price: FloatArray, capacity: int) -> float:
    """What a column [b] of one resource costs at these prices [b] of all of its capacity."""
    cost = 0.0
    for b in range(len(column)):
        cost += column[b] * price[b] / capacity
    return cost


@kernel
def _add_demand(demand: FloatArray, column: FloatArray, weight: float, capacity: int, edges_periods: IntArray) -> None:
    """Add a column [b] of one resource, `weight` times, to the `demand` [b] of one device."""
    for b in range(len(column)):
        demand[b] += weight * column[b] / (capacity * (edges_periods[b + 1] - edges_periods[b]))


@kernel
def demand_at_prices(
    slot_price: FloatArray,
    kv_price: FloatArray,
    token_price: FloatArray,
    batch_slots: IntArray,
    kv_tokens: IntArray,
    token_budget: IntArray,
    open_leases: IntArray,
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
    token_demand: FloatArray,
) -> int:
    """Each sampled request takes its best (device, start) at these prices; add up what they would occupy.

    Starts are the lower edges of buckets, in order, so a column that starts at u is empty before bucket u. Sample i
    stands for `weight[i]` requests. Its reward at a start falls with the completion time as
    decay/(decay + delay + service). The demands, [G, b], are fractions of capacity averaged over the
    bucket and are overwritten. Of starts whose values differ by rounding alone the first counts: at exact prices many
    are worth the same, and which one is taken must not hang on the unit of rewards. Returns how many samples found a
    start of positive net value.
    """
    buckets = len(edges_periods) - 1
    starts = len(starts_periods)
    slot_demand[:, :] = 0.0
    kv_demand[:, :] = 0.0
    token_demand[:, :] = 0.0
    taken = 0
    exact_slots = np.zeros(buckets)
    exact_growth = np.zeros(buckets)
    mixed = np.zeros((3, buckets))
    for i in range(len(prompt_tokens)):
        best_value, least_more = 0.0, TIE * reward[i]
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
                if token_budget[g] > 0:
                    c, chunk = length_class[i], chunk_tokens(token_budget[g], open_leases[g])
                    completion_s += period_s[g] * mixed_column(
                        prompt_tokens[i],
                        exact_tokens[i],
                        class_slots[c, u],
                        class_growth[c, u],
                        chunk,
                        starts_periods[u],
                        edges_periods,
                        mixed,
                    )
                    cost = _price_of(mixed[0], slot_price[g], batch_slots[g])
                    cost += _price_of(mixed[1], kv_price[g], kv_tokens[g])
                    cost += _price_of(mixed[2], token_price[g], token_budget[g])
                else:
                    for b in range(u, buckets):
                        if slots[b] <= 0.0:
                            break
                        cost += slots[b] * slot_price[g, b] / batch_slots[g]
                        cost += (prompt_tokens[i] * slots[b] + growth[b]) * kv_price[g, b] / kv_tokens[g]
                value = reward[i] * decay_s / (decay_s + completion_s) - cost
                if value > best_value + least_more:
                    best_value = value
                    best_device = g
                    best_start = u
        if best_device < 0:
            continue
        taken += 1
        if token_budget[best_device] > 0:
            c, chunk = length_class[i], chunk_tokens(token_budget[best_device], open_leases[best_device])
            mixed_column(
                prompt_tokens[i],
                exact_tokens[i],
                class_slots[c, best_start],
                class_growth[c, best_start],
                chunk,
                starts_periods[best_start],
                edges_periods,
                mixed,
            )
            _add_demand(slot_demand[best_device], mixed[0], weight[i], batch_slots[best_device], edges_periods)
            _add_demand(kv_demand[best_device], mixed[1], weight[i], kv_tokens[best_device], edges_periods)
            _add_demand(token_demand[best_device], mixed[2], weight[i], token_budget[best_device], edges_periods)
            continue
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
