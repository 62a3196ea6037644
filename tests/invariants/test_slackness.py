"""Invariant 3: what is not scarce is free, at convergence and after a burst."""

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.objective import Objective
from bidroute.core.requests import Request
from bidroute.lengths import OneClass
from bidroute.policies import Controller
from bidroute.policies.bid_price import BidPrice
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import Sample, ShadowPrices


def converged(batch_slots: int, kv_tokens: int, requests: int) -> ShadowPrices:
    """Prices after 600 shrinking steps before `requests` equal ones of 4 tokens, on a horizon of 16 periods."""
    fleet, model = Fleet([Device("d", batch_slots, kv_tokens, period_s=1.0)]), LengthModel(1, 2)
    prices, device = ShadowPrices(TimeGrid.uniform(16, 16)), np.array([0])
    prices.refresh_capacity(fleet, model, device)
    zeros = np.zeros(requests, dtype=np.int64)
    sample = Sample(zeros, zeros, zeros + 4, np.ones(requests), np.ones(requests), zeros)
    for step in range(600):
        scale = prices.price_scale(fleet, model, sample, device) / np.sqrt(1.0 + step)
        prices.step(fleet, model, sample, device, 100.0, scale)
    return prices


def test_invariant_3_only_the_resource_that_binds_has_a_price() -> None:
    slots_bind = converged(batch_slots=2, kv_tokens=1000, requests=12)
    assert slots_bind.slot_price[0, :4].min() > 0.0
    assert slots_bind.kv_price.max() == 0.0
    kv_binds = converged(batch_slots=1000, kv_tokens=8, requests=12)
    assert kv_binds.kv_price.max() > 0.0
    assert kv_binds.slot_price.max() == 0.0


def test_invariant_3_where_everything_fits_nothing_has_a_price() -> None:
    prices = converged(batch_slots=100, kv_tokens=1000, requests=12)
    assert prices.slot_price.max() == prices.kv_price.max() == 0.0


def test_invariant_3_prices_fall_back_to_0_after_a_burst() -> None:
    policy = BidPrice(Objective())
    controller = Controller(policy, [Device("d", 2, 2000, period_s=1.0)], OneClass())
    for i in range(200):
        controller.enqueue(0.1 * i, Request(i, 0.1 * i, 50))
    for second in range(20, 60):
        controller.update(float(second))
        for assignment in controller.decide(float(second), [0]).assignments:
            controller.started(assignment.request_id, prefilled=True)
        controller.advanced(0, 1, 1.0)
    assert max(policy.prices().slot_price.max(), policy.prices().kv_price.max()) > 0.0
    for i in range(200):
        controller.cancelled(i)
    second = 60.0
    while second < 1e6:
        second *= 1.01
        controller.update(second)
    assert policy.prices().slot_price.max() == policy.prices().kv_price.max() == 0.0
