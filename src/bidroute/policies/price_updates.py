"""When and from what sample a policy steps its shadow prices."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bidroute.core.objective import Objective
from bidroute.core.queue import FloatArray
from bidroute.core.state import RoutingState
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.pricing.prices import Sample, ShadowPrices

PERIODS_PER_STEP = 2.0
QUEUE_DRAWS = 12  # queued requests sampled per step
# At most so many steps make up for a pause. With 32, prices that a burst had raised stayed up for minutes.
STEPS_AFTER_PAUSE = 256
SCALE_SMOOTHING = 0.05


class Moment(NamedTuple):
    """When, for what, and at which pace prices are updated: the completion time past which a request is overdue, and
    the mean period of the fleet, in seconds."""

    now_s: float
    objective: Objective
    threshold_s: float
    period_s: float


class PriceUpdates:
    """Steps `prices` at most once per PERIODS_PER_STEP periods, more often after a pause; deterministic given the seed.

    Without `forecast` only the queue competes for the horizon, and no arrival to come. `price_scale` is the running
    scale of prices in reward units per device-period.
    """

    def __init__(self, prices: ShadowPrices, history: ArrivalHistory, seed: int, *, forecast: bool = True) -> None:
        self.prices = prices
        self.history = history
        self.forecast = forecast
        self.price_scale = 0.0
        self._random = np.random.default_rng(seed)
        self._last_s = -math.inf
        starts = prices.starts_periods
        self._gaps_periods = np.diff(np.append(starts, prices.grid.horizon_periods))

    def run(self, now_s: float, state: RoutingState, objective: Objective, threshold_s: float) -> None:
        """Step the prices if enough periods have passed since the last step."""
        devices = state.fleet.active
        if not len(devices) or not len(self.history):
            return
        _, period_s = state.fleet.pace_s()
        elapsed_periods = (now_s - self._last_s) / period_s
        if 0.0 <= elapsed_periods < PERIODS_PER_STEP:  # negative: the clock was set back
            return
        self._last_s = now_s
        self.prices.refresh_capacity(state.fleet, state.lengths, devices)
        self._follow(Moment(now_s, objective, threshold_s, period_s), state, elapsed_periods)

    def _follow(self, moment: Moment, state: RoutingState, elapsed_periods: float) -> None:
        """Bring the prices up to date with the capacity that is left now, `elapsed_periods` after the last time."""
        for _ in range(int(min(max(elapsed_periods / (2.0 * PERIODS_PER_STEP), 1.0), STEPS_AFTER_PAUSE))):
            sample = self._sample(moment, state)
            self._follow_scale(state, sample)
            active = state.fleet.active
            self.prices.step(state.fleet, state.lengths, sample, active, moment.threshold_s, self.price_scale)

    def _follow_scale(self, state: RoutingState, sample: Sample) -> None:
        scale = self.prices.price_scale(state.fleet, state.lengths, sample, state.fleet.active)
        if scale > 0.0:  # requests worth nothing say nothing about prices, and a scale of 0 could rank nobody
            self.price_scale += (SCALE_SMOOTHING if self.price_scale else 1.0) * (scale - self.price_scale)

    def service_s(self, state: RoutingState) -> float:
        """Expected decode time of a recent arrival: the least that a mean sojourn can be."""
        mean_tokens = self.prices.columns(state.lengths).mean_tokens[self.history.length_class]
        return float(mean_tokens.mean()) * state.fleet.pace_s()[1]

    def _sample(self, moment: Moment, state: RoutingState, draws: int = QUEUE_DRAWS, per_start: int = 1) -> Sample:
        """`draws` from the queue, which may start at once, and `per_start` recent arrivals per start offset."""
        now_s, objective, threshold_s, period_s = moment
        queue, history = state.queue, self.history
        waiting = len(queue)
        rows = self._random.integers(0, max(waiting, 1), min(draws, waiting))
        starts = np.tile(self.prices.starts_periods, per_start)
        past = self._random.integers(0, len(history), len(starts))
        prompt_tokens = np.concatenate([queue.prompt_tokens[rows], history.prompt_tokens[past]])
        length_class = np.concatenate([queue.length_class[rows], history.length_class[past]])
        exact_tokens = np.concatenate([queue.exact_tokens[rows], np.zeros(len(starts), dtype=np.int64)])
        wait_s = np.concatenate([np.maximum(now_s - queue.arrival_s[rows], 0.0), np.zeros(len(starts))])
        mean_tokens = self.prices.columns(state.lengths).mean_tokens[length_class]
        tokens: FloatArray = np.where(exact_tokens > 0, exact_tokens, mean_tokens)
        slo_s = np.full(len(wait_s), math.inf)
        slo_s[: len(rows)] = np.minimum(
            queue.e2e_slo_s[rows], queue.ttft_slo_s[rows] + (tokens[: len(rows)] - 1.0) * period_s
        )
        reward = _rewards(objective, wait_s, tokens, slo_s, threshold_s, period_s)
        priority = queue.priority[rows]
        if priority.any():
            reward[: len(rows)] *= objective.priority_factor(priority)
        per_draw = np.full(len(rows), waiting / max(len(rows), 1))
        rate_per_s = self.history.rate_per_s(now_s) if self.forecast else 0.0
        gaps_periods = np.tile(self._gaps_periods / per_start, per_start)
        weight = np.concatenate([per_draw, rate_per_s * (gaps_periods * period_s)])
        earliest = np.concatenate([np.zeros(len(rows), dtype=np.int64), starts])
        return Sample(prompt_tokens, length_class, exact_tokens, reward, weight, earliest)


def _rewards(
    objective: Objective,
    wait_s: FloatArray,
    tokens: FloatArray,
    slo_s: FloatArray,
    threshold_s: float,
    period_s: float,
) -> FloatArray:
    """Total reward of each sampled request if it started at its earliest, float64[m]."""
    first_token_s = np.full(len(wait_s), period_s)
    terms = objective.terms(wait_s, tokens * period_s, first_token_s, tokens, slo_s, threshold_s)
    reward = np.zeros(len(wait_s))
    for term in terms.values():
        reward += term
    return reward
