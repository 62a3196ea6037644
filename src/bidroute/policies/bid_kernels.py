"""Numba kernels of a bid-price decision. Shapes: D devices that may take a request, m waiting requests considered."""

from __future__ import annotations

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.objective import URGENCY
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.admission_kernels import BEHIND

PRICED_OUT = BEHIND + 1  # one more column of the tally, after the verdicts


@kernel
def bid_values(
    now_s: float,
    threshold_s: float,
    floor_price: float,
    least_reward: float,
    weights: FloatArray,
    fastest_s: float,
    period_s: FloatArray,
    slower_s: FloatArray,
    later_s: FloatArray,
    arrival_s: FloatArray,
    priority: FloatArray,
    ttft_slo_s: FloatArray,
    e2e_slo_s: FloatArray,
    length_class: IntArray,
    exact_tokens: IntArray,
    prompt_tokens: IntArray,
    class_tokens: FloatArray,
    usable_kv_tokens: IntArray,
    rows: IntArray,
    slot_cost: FloatArray,
    kv_cost: FloatArray,
    footprint: FloatArray,
    value: FloatArray,
    ratio: FloatArray,
) -> None:
    """Reduced cost and reward per price of each pair, [D, m]: `Objective.terms` and `Bids`, fused.

    `weights` is `Objective.weights`: throughput, latency, ttft, tail, goodput, sigma, alpha, beta, gamma, then
    horizon_s, priority_base and the share of the service that counts as lateness. The queue's columns are [n].
    A device is `slower_s` [D] per token than the fastest, and can start a request `later_s` [D] from now.
    No reward counts as less than `least_reward`. A request that could never run on a device, which holds
    `usable_kv_tokens` [D], ranks below all that could (−∞).
    """
    throughput, latency, ttft, tail, goodput = weights[0], weights[1], weights[2], weights[3], weights[4]
    sigma, alpha, beta, gamma = weights[5], weights[6], weights[7], weights[8]
    horizon_s, priority_base, service_share = weights[9], weights[10], weights[11]
    decaying = latency > 0.0 or ttft > 0.0
    linear = sigma > 0.0 or alpha > 0.0 or beta > 0.0 or gamma > 0.0
    for d in range(len(period_s)):
        for i in range(len(rows)):
            row = rows[i]
            tokens = float(exact_tokens[row])
            if exact_tokens[row] == 0:
                tokens = class_tokens[length_class[row]]
            service_s = tokens * period_s[d]
            wait_s = max(now_s - arrival_s[row], 0.0)  # the clock may have been set back
            completion_s = wait_s + service_s
            reward = throughput
            if decaying:
                reward = throughput + latency / (1.0 + completion_s) + ttft / (1.0 + wait_s + period_s[d])
            if linear:
                reward += sigma + alpha * tokens / 1000.0
                reward += beta * max(horizon_s - completion_s, 0.0) + gamma * max(horizon_s - wait_s, 0.0)
            latest_s = min(e2e_slo_s[row] - service_s, ttft_slo_s[row] - period_s[d])
            if wait_s <= latest_s:
                used = wait_s / latest_s if latest_s > 0.0 else 0.0
                reward += goodput * (1.0 + URGENCY * used**4)
            lateness = (wait_s + service_share * tokens * fastest_s) / threshold_s - 1.0
            if lateness > 0.0:
                reward += tail * lateness * lateness
            if priority[row] != 0.0:
                reward *= priority_base ** min(max(priority[row], -20.0), 20.0)
            reward *= threshold_s / (threshold_s + tokens * slower_s[d] + later_s[d])
            reward = max(reward, least_reward)
            cost = slot_cost[d, i] + kv_cost[d, i]
            value[d, i] = reward - cost
            ratio[d, i] = reward / (cost + floor_price * footprint[d, i])
            if prompt_tokens[row] + max(exact_tokens[row], 1) > usable_kv_tokens[d]:
                ratio[d, i] = -np.inf


@kernel
def tally(
    value: FloatArray,
    order: IntArray,
    verdicts: IntArray,
    released: IntArray,
    counts: IntArray,
    leaves_room: IntArray,
) -> None:
    """Count why requests were held, and find the devices whose room nobody was willing to pay for.

    `order` and `verdicts` [k] are the pairs offered (flat indexes into `value` [D, m]) and what admission said;
    `released` the places in the order that were let go. Each other request counts once in `counts` [PRICED_OUT + 1],
    with the verdict that got furthest among its pairs worth their price. `leaves_room` [D] is set to 1 where some
    were priced out and no pair worth its price was turned down, unless its request went elsewhere.
    """
    devices, m = value.shape
    counts[:] = 0
    furthest = np.full(m, -1)
    gone = np.zeros(m, dtype=np.bool_)
    for k in released:
        gone[order[k] % m] = True
    leaves_room[:] = 0
    for i in range(m):
        worth_it = False
        for d in range(devices):
            if value[d, i] > 0.0:
                worth_it = True
            else:
                leaves_room[d] = 1
        if not worth_it and not gone[i]:
            counts[PRICED_OUT] += 1
    for k in range(len(order)):
        d, i = order[k] // m, order[k] % m
        if value[d, i] > 0.0 and not gone[i]:
            furthest[i] = max(furthest[i], verdicts[k])
            leaves_room[d] = 0
    for i in range(m):
        if furthest[i] >= 0:
            counts[furthest[i]] += 1
