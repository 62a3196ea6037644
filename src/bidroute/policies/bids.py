"""Bids: what each waiting request offers for, and would cost on, each device that could take it now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.core.objective import Objective
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.state import RoutingState
from bidroute.pricing.prices import Costs, ShadowPrices

PRICE_FLOOR = 0.05  # share of the running price scale that enters the ratio where nothing is scarce


@dataclass(frozen=True, slots=True)
class Bids:
    """Rewards, costs and what follows from them, each float64[D, m] for D devices and m waiting requests.

    `terms` are the reward terms before `multiplier` (priority and pace) is applied; `value` = reward − cost;
    `ratio` = reward per unit of price.
    """

    terms: dict[str, FloatArray]
    multiplier: FloatArray
    costs: Costs
    value: FloatArray
    ratio: FloatArray

    def reward_of(self, position: int, column: int) -> dict[str, float]:
        """Reward by term of one pair; the terms add up to its reward."""
        factor = float(self.multiplier[position, column])
        return {name: float(term[position, column]) * factor for name, term in self.terms.items()}

    def price_of(self, position: int, column: int) -> dict[str, float]:
        """Price by resource of one pair."""
        return {"slots": float(self.costs.slots[position, column]), "kv": float(self.costs.kv[position, column])}


def bids(
    now_s: float,
    state: RoutingState,
    devices: IntArray,
    rows: IntArray,
    objective: Objective,
    prices: ShadowPrices,
    threshold_s: float,
    price_scale: float,
) -> Bids:
    """Price the queue's `rows` on `devices`, both int64, as if each started now.

    The reward is scaled by pace = threshold/(threshold + service): of two devices the faster one is worth more.
    """
    queue = state.queue
    period_s = np.array([state.fleet.ledgers[g].period_s for g in devices])[:, None]
    tokens = expected_tokens(state, prices, rows)
    service_s = tokens * period_s
    wait_s = now_s - queue.arrival_s[rows]
    slo_s = np.minimum(queue.e2e_slo_s[rows], queue.ttft_slo_s[rows] + service_s)
    terms = objective.terms(wait_s, service_s, period_s, tokens, slo_s, threshold_s)
    multiplier = objective.priority_factor(queue.priority[rows]) * (threshold_s / (threshold_s + service_s))
    reward = np.zeros_like(service_s)
    for term in terms.values():
        reward += term
    reward *= multiplier
    costs = prices.costs(state, devices, rows)
    cost = costs.slots + costs.kv
    ratio = reward / (cost + PRICE_FLOOR * price_scale * costs.footprint)
    return Bids(terms, multiplier, costs, reward - cost, ratio)


def expected_tokens(state: RoutingState, prices: ShadowPrices, rows: IntArray) -> FloatArray:
    """Expected output tokens of the queue's `rows`, float64[m]: known for certain, or the mean of the class."""
    exact = state.queue.exact_tokens[rows]
    mean = prices.columns(state.lengths).mean_tokens[state.queue.length_class[rows]]
    return np.where(exact > 0, exact, mean)
