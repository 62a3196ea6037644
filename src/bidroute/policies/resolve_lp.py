"""The bid-price policy at exact prices: every so many periods the linear program of a sample is solved by HiGHS.

In between, the prices follow by the first-order steps of `bid_price`; the decision is the same. It shows what exact
prices are worth (docs/how-it-works.md), and needs the extra `exact`.
"""

from __future__ import annotations

import math

import numpy as np

from bidroute.core.fleet import Fleet
from bidroute.core.objective import Objective, parse_objective
from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.policies.base import Policy
from bidroute.policies.bid_price import DEFAULT_MAX_SKIPS, DEFAULT_RISK_Z, BidPrice
from bidroute.policies.price_updates import Moment, PriceUpdates
from bidroute.policies.registry import PolicySettings, register
from bidroute.pricing.exact_lp import load_highspy
from bidroute.pricing.mixed_kernels import chunk_tokens
from bidroute.pricing.prices import ShadowPrices
from bidroute.pricing.sampled_lp import Devices, exact_prices

DEFAULT_EVERY_PERIODS = 200.0
QUEUE_DRAWS = 64  # of one program; far more than of one step, which is one of many
ARRIVALS_PER_START = 2


class ResolveLp(BidPrice):
    """`bid_price` whose prices are those of the linear program at every `every_periods` mean periods of the fleet.

    Raises ConfigError without the extra `exact`, and where `every_periods` is not positive.
    """

    name = "resolve_lp"

    def __init__(
        self,
        objective: Objective,
        seed: int = 0,
        *,
        risk_z: float = DEFAULT_RISK_Z,
        max_skips: int = DEFAULT_MAX_SKIPS,
        every_periods: float = DEFAULT_EVERY_PERIODS,
    ) -> None:
        load_highspy()
        super().__init__(objective, seed, risk_z=risk_z, max_skips=max_skips)
        self._updates = ResolvingUpdates(self.shadow_prices, self._history, seed, every_periods)


class ResolvingUpdates(PriceUpdates):
    """Solves the program of a sample every `every_periods` periods, and steps in between.

    Devices have clocks of their own: a period is the mean one of those that take requests, as for the steps, so that
    the time between two solutions does not depend on how many devices there are.
    """

    def __init__(self, prices: ShadowPrices, history: ArrivalHistory, seed: int, every_periods: float) -> None:
        if every_periods <= 0.0:
            raise ConfigError(f"every={every_periods:g}; expected a number of periods above 0")
        super().__init__(prices, history, seed)
        self.every_periods = every_periods
        self._since_periods = math.inf

    def _follow(self, moment: Moment, state: RoutingState, elapsed_periods: float) -> None:
        self._since_periods += elapsed_periods
        if self._since_periods < self.every_periods or not self._solve(moment, state):
            super()._follow(moment, state, elapsed_periods)

    def _solve(self, moment: Moment, state: RoutingState) -> bool:
        """Whether the prices are now those of a program just solved: not where nothing is worth anything."""
        self._since_periods = 0.0
        sample = self._sample(moment, state, QUEUE_DRAWS, ARRIVALS_PER_START)
        self._follow_scale(state, sample)
        if not self.price_scale:
            return False
        prices, active = self.prices, state.fleet.active
        price = exact_prices(
            self._devices(state.fleet),
            prices.grid,
            prices.columns(state.lengths),
            sample,
            moment.threshold_s,
            self.price_scale,
            np.stack([row[active] for row in (prices.slot_price, prices.kv_price, prices.token_price)]),
        )
        if price is None:
            return False
        prices.slot_price[active], prices.kv_price[active], prices.token_price[active] = price
        return True

    def _devices(self, fleet: Fleet) -> Devices:
        """Those that take requests, with the capacity that they have left."""
        prices, active = self.prices, fleet.active
        left = prices.slots_left, prices.kv_left, prices.tokens_left
        capacity = np.stack([fleet.batch_slots, fleet.kv_tokens, fleet.token_budget])[:, active]
        return Devices(
            np.stack([row[active] for row in left]),
            capacity,
            np.array([chunk_tokens(*one) for one in zip(capacity[2], fleet.open_leases[active], strict=True)]),
            fleet.period_s[active],
        )


@register("resolve_lp", variant=True)
def _resolve_lp(settings: PolicySettings) -> Policy:
    return ResolveLp(
        parse_objective(settings.objective),
        settings.seed,
        risk_z=settings.number("risk_z", DEFAULT_RISK_Z),
        max_skips=settings.whole("max_skips", DEFAULT_MAX_SKIPS),
        every_periods=settings.number("every", DEFAULT_EVERY_PERIODS),
    )
