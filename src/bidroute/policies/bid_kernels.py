"""Numba kernels of bids: what a waiting request offers for a device, less what it would cost there.

Shapes: G devices in the fleet, k of them asked, m waiting requests that bid, c length classes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.fleet import USABLE_KV_TOKENS, FleetColumns
from bidroute.core.ledger_kernels import pace
from bidroute.core.objective import URGENCY
from bidroute.core.pace_kernels import PERIOD_S
from bidroute.core.queue import (
    ARRIVAL_S,
    E2E_SLO_S,
    EXACT_TOKENS,
    LENGTH_CLASS,
    PRIORITY,
    PROMPT_TOKENS,
    TTFT_SLO_S,
    FloatArray,
    IntArray,
    QueueColumns,
)
from bidroute.pricing.cost_kernels import (
    GROWTH,
    PER_PROMPT,
    PROMPT_SHARE,
    SHARE,
    SLOTS,
    Tables,
    cost_of_length,
    mixed_cost,
    share_of_length,
)


class Moment(NamedTuple):
    """When bids are made, from when on a request is overdue, and two floors: `floor_price` per footprint enters the
    ratio only; no reward counts as less than `least_reward`."""

    now_s: float
    threshold_s: float
    floor_price: float
    least_reward: float


class Terms(NamedTuple):
    """What a bid depends on besides the request and the prices: a `Moment`, the fleet and the length classes.

    `weights` is `Objective.weights`: throughput, latency, ttft, tail, goodput, sigma, alpha, beta, gamma, then
    horizon_s, priority_base and the share of the service that counts as lateness. `fastest_s`: the shortest period of
    the fleet; `period_s` float64[G], `usable_kv_tokens` int64[G]; `class_tokens` float64[c] are mean output tokens. A
    token costs `pace_s` float64[G] (`Paces.marginal_s`), at least `least_pace_s`.
    """

    now_s: float
    threshold_s: float
    floor_price: float
    least_reward: float
    weights: FloatArray
    fastest_s: float
    period_s: FloatArray
    usable_kv_tokens: IntArray
    class_tokens: FloatArray
    pace_s: FloatArray
    least_pace_s: float


@kernel
def bid_terms(
    moment: Moment, weights: FloatArray, fleet: FleetColumns, class_tokens: FloatArray, pace_s: FloatArray
) -> Terms:
    """What bids depend on at this moment, where a token costs `pace_s` float64[G] on each device."""
    devices = fleet.active if len(fleet.active) > 0 else np.arange(len(fleet.prior_s))
    period_s = fleet.moments[PERIOD_S]
    fastest_s, least_pace_s = pace(period_s, devices)[0], pace(pace_s, devices)[0]
    return Terms(
        moment.now_s,
        moment.threshold_s,
        moment.floor_price,
        moment.least_reward,
        weights,
        fastest_s,
        period_s,
        fleet.totals[USABLE_KV_TOKENS],
        class_tokens,
        pace_s,
        least_pace_s,
    )


@kernel
def fill_bids(
    terms: Terms,
    waiting: QueueColumns,
    tables: Tables,
    positions: IntArray,
    rows: IntArray,
    later_s: FloatArray,
    reward: FloatArray,
    value: FloatArray,
    ratio: FloatArray,
) -> None:
    """Reward, reduced cost and reward per price of the queue's `rows` [m] on the devices at `positions` [k].

    The device at position d can start a request `later_s[d]` seconds from now. All three, [k, m], are overwritten. The
    reward is `Objective.terms`, fused. A request that never fits a device has ratio −∞.
    """
    # Fields are read once: each read of an array from a tuple counts a reference, which costs more than a bid.
    now_s, threshold_s, floor_price, least_reward, fastest_s = (
        terms.now_s,
        terms.threshold_s,
        terms.floor_price,
        terms.least_reward,
        terms.fastest_s,
    )
    weights, class_tokens, period_s, usable_kv_tokens = (
        terms.weights,
        terms.class_tokens,
        terms.period_s,
        terms.usable_kv_tokens,
    )
    pace_s, least_pace_s = terms.pace_s, terms.least_pace_s
    throughput, latency, ttft, tail, goodput = weights[0], weights[1], weights[2], weights[3], weights[4]
    sigma, alpha, beta, gamma = weights[5], weights[6], weights[7], weights[8]
    horizon_s, priority_base, service_share = weights[9], weights[10], weights[11]
    per_threshold = 1.0 / threshold_s
    decaying = latency > 0.0 or ttft > 0.0
    linear = sigma > 0.0 or alpha > 0.0 or beta > 0.0 or gamma > 0.0
    ints, floats = waiting.ints, waiting.floats
    prompt_tokens, length_class, exact_tokens = ints[PROMPT_TOKENS], ints[LENGTH_CLASS], ints[EXACT_TOKENS]
    arrival_s, priority, ttft_slo_s, e2e_slo_s = (
        floats[ARRIVAL_S],
        floats[PRIORITY],
        floats[TTFT_SLO_S],
        floats[E2E_SLO_S],
    )
    edges_periods, of_class = tables.edges_periods, tables.of_class
    for k in range(len(positions)):
        d = positions[k]
        g, sums, per_slot, per_token = (
            tables.devices[d],
            tables.of_length[d],
            tables.per_slot[d],
            tables.per_token[d],
        )
        device_s, usable, behind_s, start_s = period_s[g], usable_kv_tokens[g], pace_s[g] - least_pace_s, later_s[d]
        mixed, first_s, prefill_s = tables.per_budget[d] > 0.0, device_s, 0.0
        for i in range(len(rows)):
            row = rows[i]
            prompt, exact = prompt_tokens[row], exact_tokens[row]
            c = length_class[row]
            tokens = float(exact) if exact > 0 else class_tokens[c]
            if mixed:
                costs = mixed_cost(tables, d, prompt, c, exact)
                cost, footprint = costs.slots + costs.kv + costs.tokens, costs.footprint
                prefill_s = costs.delay * device_s
                first_s = device_s + prefill_s
            elif exact > 0:
                slot_cost, kv_cost = cost_of_length(edges_periods, sums, prompt, exact)
                cost, footprint = slot_cost + kv_cost, share_of_length(prompt, exact, per_slot, per_token)
            else:
                cost = of_class[d, c, SLOTS] + of_class[d, c, GROWTH] + prompt * of_class[d, c, PER_PROMPT]
                footprint = of_class[d, c, SHARE] + prompt * of_class[d, c, PROMPT_SHARE]
            service_s = tokens * device_s + prefill_s
            wait_s = max(now_s - arrival_s[row], 0.0)  # the clock may have been set back
            completion_s = wait_s + service_s
            worth = throughput
            if decaying:
                worth += latency / (1.0 + completion_s) + ttft / (1.0 + wait_s + first_s)
            if linear:
                worth += sigma + alpha * tokens / 1000.0
                worth += beta * max(horizon_s - completion_s, 0.0) + gamma * max(horizon_s - wait_s, 0.0)
            if goodput > 0.0:
                latest_s = min(e2e_slo_s[row] - service_s, ttft_slo_s[row] - first_s)
                if wait_s <= latest_s:
                    used = wait_s / latest_s if latest_s > 0.0 else 0.0
                    worth += goodput * (1.0 + URGENCY * used**4)
            lateness = (wait_s + service_share * tokens * fastest_s) * per_threshold - 1.0
            if lateness > 0.0:
                worth += tail * lateness * lateness
            if priority[row] != 0.0:
                worth *= priority_base ** min(max(priority[row], -20.0), 20.0)
            if behind_s > 0.0 or start_s > 0.0:
                worth *= threshold_s / (threshold_s + tokens * behind_s + start_s)
            worth = max(worth, least_reward)
            reward[k, i], value[k, i] = worth, worth - cost
            ratio[k, i] = worth / (cost + floor_price * footprint)
            if prompt + max(exact, 1) > usable:
                ratio[k, i] = -np.inf


@kernel
def rank_by_best_device(reward: FloatArray, value: FloatArray, ratio: FloatArray) -> None:
    """Give each request the place it has on its best device: the one where its `value` is highest; all [k, m].

    Its other devices come after, by the share of its reward that it would lose there:
    ratio ← best ratio / (1 + (best value − value)/best reward). A ratio of −∞ stays.
    """
    for i in range(value.shape[1]):
        best = -1
        for k in range(len(value)):
            if ratio[k, i] > -np.inf and (best < 0 or value[k, i] > value[best, i]):
                best = k
        if best < 0:
            continue
        most = ratio[best, i]
        for k in range(len(value)):
            if ratio[k, i] > -np.inf:
                ratio[k, i] = most / (1.0 + (value[best, i] - value[k, i]) / reward[best, i])
