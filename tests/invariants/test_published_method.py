"""What the published method gets wrong does not happen here (docs/how-it-works.md names the test for each point)."""

import dataclasses
import math

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.lengths import OneClass
from bidroute.policies import Controller, Decision, Policy, Timing
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.policies.bid_price import BidPrice
from bidroute.policies.price_updates import Moment, PriceUpdates
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import Sample, ShadowPrices
from bidroute.simulator import Outcome, summary
from tests.invariants.runs import run
from tests.policies.states import state

DEVICE = Device("d", 2, 1000, period_s=1.0)
ONE = np.array([0])


def test_prices_have_a_capacity_term_so_they_can_fall() -> None:
    prices, idle = ShadowPrices(TimeGrid.uniform(4, 4)), state([DEVICE])
    prices.refresh_capacity(idle.fleet, idle.lengths, ONE)
    prices.slot_price[:] = 1.0
    zero = np.zeros(1, dtype=np.int64)
    sample = Sample(zero, zero, zero + 4, np.ones(1), np.ones(1), zero)
    prices.step(idle.fleet, idle.lengths, sample, ONE, 10.0, 1.0)
    assert prices.slot_price.max() < 1.0


def test_a_request_may_start_later_where_that_is_cheaper() -> None:
    """Its demand moves to the later, free periods: it is not one column that must start now."""
    prices, idle = ShadowPrices(TimeGrid.uniform(8, 8)), state([DEVICE])
    prices.refresh_capacity(idle.fleet, idle.lengths, ONE)
    prices.slot_price[0, :4] = 1.0
    zero = np.zeros(1, dtype=np.int64)
    sample = Sample(zero, zero, zero + 2, np.ones(1), np.array([50.0]), zero)
    prices.step(idle.fleet, idle.lengths, sample, ONE, 1000.0, 0.1)
    assert prices.slot_price[0, :4].max() < 1.0
    assert prices.slot_price[0, 4:6].min() > 0.0


def test_old_arrivals_do_not_dilute_the_forecast() -> None:
    """History is kept in time from now: after ten times as many arrivals the forecast is the same."""
    forecasts = []
    for arrivals in (600, 6000):
        history, prices = ArrivalHistory(), ShadowPrices()
        for k in range(arrivals):
            history.add(0.1 * k, 10, 0)
        updates = PriceUpdates(prices, history, 0)
        sample = updates._sample(Moment(0.1 * (arrivals - 1), Objective(), 10.0, 1.0), state([DEVICE]))
        forecasts.append(sample.weight)
    np.testing.assert_allclose(forecasts[0], forecasts[1])


def test_the_ledger_is_reconciled_with_what_really_happened() -> None:
    """A request expected to run for long that ends at once gives back all it was expected to hold."""
    policy = BidPrice(Objective())
    controller = Controller(policy, [DEVICE], OneClass())
    controller.enqueue(0.0, Request(0, 0.0, 10))
    controller.decide(0.0, [0])
    controller.started(0, prefilled=True)
    fleet, lengths, prices = controller.state.fleet, controller.state.lengths, policy.shadow_prices
    prices.refresh_capacity(fleet, lengths, ONE)
    assert prices.slots_left[0, 0] == 0.5
    controller.advanced(0, 1, 1.0)
    controller.finished(1.0, 0, 1)
    prices.refresh_capacity(fleet, lengths, ONE)
    assert prices.slots_left.min() == prices.kv_left.min() == 1.0
    assert lengths.finished.sum() == 1


def test_the_router_is_not_told_the_true_length() -> None:
    assert "output_tokens" not in {field.name for field in dataclasses.fields(Request)}


class Stubborn(Policy):
    """Never releases the request with this id."""

    name = "stubborn"
    timing = Timing.WHEN_STARTABLE

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.inner = BidPrice(Objective())

    def decide(self, now_s: float, state: RoutingState, devices: list[int]) -> Decision:  # type: ignore[override]
        decision = self.inner.decide(now_s, state, devices)
        return Decision([assignment for assignment in decision.assignments if assignment.request_id != self.kept])


def test_unfinished_requests_are_counted_apart() -> None:
    result = run([(0.0, 0, 5), (1.0, 0, 5), (2.0, 0, 5)], 4, 100, policy=Stubborn(1))
    assert result.status.tolist() == [Outcome.FINISHED, Outcome.UNFINISHED, Outcome.FINISHED]
    assert math.isnan(result.end_s[1])
    row = summary(result)
    assert row["unfinished"] == 1
    assert row["e2e_s"]["mean"] == 5.0  # type: ignore[index]


def test_unlike_requests_are_ranked() -> None:
    """One slot, four sizes at once: the smallest footprint goes first, whatever the order of arrival."""
    result = run([(0.0, 10, 20), (0.0, 200, 4), (0.0, 10, 4), (0.0, 10, 10)], 1, 1000)
    assert np.argsort(result.start_s).tolist() == [2, 1, 3, 0]


def test_kv_can_bind_before_the_slots_do() -> None:
    """Slots for ten, KV for two: two at a time, and it is the KV that holds the others."""
    result = run([(0.0, 45, 5)] * 6, 10, 100)
    assert np.unique(result.start_s, return_counts=True)[1].tolist() == [2, 2, 2]
    assert "slots" not in result.held
