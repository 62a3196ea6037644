"""Bids: what each waiting request offers for, and would cost on, each device that could take it now."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute.core.objective import Objective
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.state import RoutingState
from bidroute.policies.bid_kernels import Moment, Terms, bid_terms, fill_bids
from bidroute.pricing.cost_kernels import tabulate
from bidroute.pricing.mixed_kernels import chunk_tokens, prefill_delay
from bidroute.pricing.prices import Costs, ShadowPrices

PRICE_FLOOR = 0.05  # share of the running price scale that enters the ratio where nothing is scarce
# A request worth nothing (an SLO missed, a horizon passed) still takes what nobody else would: its reward counts as
# this many device-periods at the running price scale.
LEAST_REWARD = 1e-9


class Bids(NamedTuple):
    """Costs, rewards and what follows from them, each float64[D, n] for D devices and n waiting requests.

    `value` = reward − cost, the reduced cost; `ratio` = reward per unit of price, −∞ where the request
    could never run on the device.
    """

    costs: Costs
    reward: FloatArray
    value: FloatArray
    ratio: FloatArray


class Bidding(NamedTuple):
    """What bids depend on besides the state: the objective, the prices, their running scale, what is overdue.

    `pace_s` float64[G]: what a token costs on each device, in seconds (`Paces.marginal_s`).
    """

    objective: Objective
    prices: ShadowPrices
    price_scale: float
    threshold_s: float
    pace_s: FloatArray

    def bids(self, now_s: float, state: RoutingState, devices: IntArray, later_s: FloatArray | None = None) -> Bids:
        """Price all that wait on `devices`, int64[D], as if each started in `later_s` float64[D] (None: now)."""
        costs = self.prices.costs(state, devices)
        reward, value, ratio = np.empty((3, len(devices), len(state.queue)))
        tables, rows = tabulate(self.prices.view(state), devices), np.arange(len(state.queue))
        terms, columns = self.terms(now_s, state), state.queue.columns()
        starts_s = np.zeros(len(devices)) if later_s is None else later_s
        fill_bids(terms, columns, tables, np.arange(len(devices)), rows, starts_s, reward, value, ratio)
        return Bids(costs, reward, value, ratio)

    def terms(self, now_s: float, state: RoutingState) -> Terms:
        """What the kernels of bids need besides the queue and the prices."""
        class_tokens = self.prices.columns(state.lengths).mean_tokens
        moment = moment_of(now_s, self.threshold_s, self.price_scale)
        return bid_terms(moment, self.objective.weights(), state.fleet.columns(), class_tokens, self.pace_s)

    def reward_terms(
        self, now_s: float, state: RoutingState, device: int, row: int, later_s: float = 0.0
    ) -> dict[str, float]:
        """The reward of one pair, startable in `later_s`, by term; they add up to value + cost of its bid (or to 0).

        The pace threshold/(threshold + what its tokens cost more than on the fastest) scales every term.
        """
        queue = state.queue
        tokens = expected_tokens(state, self.prices, np.array([row]))
        fleet, period_s = state.fleet, state.fleet.period_s[device : device + 1]
        budget, prefill_s = int(fleet.token_budget[device]), np.zeros(1)
        if budget > 0:
            chunk = chunk_tokens(budget, int(fleet.open_leases[device]))
            prefill_s = prefill_delay(int(queue.prompt_tokens[row]), chunk) * period_s
        first_token_s = period_s + prefill_s
        service_s, fastest_service_s = tokens * period_s + prefill_s, tokens * fleet.pace_s()[0]
        wait_s = np.maximum(now_s - queue.arrival_s[row : row + 1], 0.0)
        ttft_slack_s = queue.ttft_slo_s[row : row + 1] - first_token_s
        slo_s = np.minimum(queue.e2e_slo_s[row : row + 1], ttft_slack_s + service_s)
        terms = self.objective.terms(wait_s, service_s, first_token_s, tokens, slo_s, self.threshold_s)
        if "tail" in terms:  # being overdue is the request's own: it must not bid more for a slower device
            on_fastest = self.objective.terms(wait_s, fastest_service_s, first_token_s, tokens, slo_s, self.threshold_s)
            terms["tail"] = on_fastest["tail"]
        slower_s = tokens * (self.pace_s[device] - state.fleet.pace_s(self.pace_s)[0])
        pace = self.threshold_s / (self.threshold_s + slower_s + later_s)
        factor = float(self.objective.priority_factor(queue.priority[row : row + 1])[0] * pace[0])
        return {name: float(term[0]) * factor for name, term in terms.items()}


def moment_of(now_s: float, threshold_s: float, price_scale: float) -> Moment:
    """A moment, with the floors that go with the running scale of prices."""
    return Moment(now_s, threshold_s, PRICE_FLOOR * price_scale, LEAST_REWARD * price_scale)


def expected_tokens(state: RoutingState, prices: ShadowPrices, rows: IntArray) -> FloatArray:
    """Expected output tokens of the queue's `rows`, float64[m]: known for certain, or the mean of the class."""
    exact = state.queue.exact_tokens[rows]
    mean = prices.columns(state.lengths).mean_tokens[state.queue.length_class[rows]]
    return np.where(exact > 0, exact, mean)
