"""Bids, and the kernel that makes them, against the objective and the prices they come from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.objective import Objective
from bidroute.core.queue import WaitingQueue
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.policies.bid_kernels import rank_by_best_device
from bidroute.policies.bids import PRICE_FLOOR, Bidding, expected_tokens
from bidroute.pricing.prices import ShadowPrices
from tests.policies.states import MODEL, state

SEEDS = st.integers(0, 2**32 - 1)
EVERY_TERM = Objective(1, 2, 3, 4, 5, 6, 7, 8, 9)


def random_state(random: np.random.Generator) -> RoutingState:
    periods = random.uniform(0.01, 0.1, 3)
    devices = [Device("d", int(random.integers(1, 9)), int(random.integers(50, 900)), period_s=p) for p in periods]
    made = RoutingState(WaitingQueue(), Fleet(devices), MODEL)
    for i in range(6):
        request = Request(
            i,
            float(random.uniform(0, 50)),
            int(random.integers(0, 200)),
            priority=float(random.integers(-2, 3)),
            ttft_slo_s=float(random.choice([np.inf, 20.0])),
            e2e_slo_s=float(random.choice([np.inf, 30.0])),
        )
        made.queue.add(request, int(random.integers(0, 2)), int(random.choice([0, 30])))
    return made


def random_prices(random: np.random.Generator) -> ShadowPrices:
    prices = ShadowPrices()
    prices.fit_fleet(3)
    shape = prices.slot_price.shape
    prices.slot_price[:], prices.kv_price[:] = random.exponential(0.01, (2, *shape)) * random.integers(
        0, 2, (2, *shape)
    )
    return prices


@given(SEEDS)
def test_a_bid_is_its_terms_less_its_costs(seed: int) -> None:
    random = np.random.default_rng(seed)
    waiting, prices = random_state(random), random_prices(random)
    bidding = Bidding(EVERY_TERM, prices, 0.5, 10.0, random.uniform(0.01, 0.1, 3))
    devices = np.array([2, 0])
    bid = bidding.bids(60.0, waiting, devices)
    costs = prices.costs(waiting, devices)
    for d, device in enumerate(devices):
        for row in range(6):
            reward = sum(bidding.reward_terms(60.0, waiting, int(device), row).values())
            cost = costs.slots[d, row] + costs.kv[d, row]
            assert bid.value[d, row] == pytest.approx(reward - cost)
            peak_tokens = waiting.queue.prompt_tokens[row] + max(waiting.queue.exact_tokens[row], 1)
            ratio = reward / (cost + PRICE_FLOOR * 0.5 * costs.footprint[d, row])
            fits = peak_tokens <= waiting.fleet.usable_kv_tokens[device]
            assert bid.ratio[d, row] == pytest.approx(ratio if fits else -np.inf)


def test_a_reward_in_closed_form() -> None:
    # 30 periods of 0.1 s after 5 s of waiting: on the fastest device there is, terms count in full; on one that takes
    # 3 s more they count threshold/(threshold + 3)
    waiting = state([Device("d", 4, 1000, period_s=0.1), Device("e", 4, 1000, period_s=0.2)], [(10, 0, 30)], [], [0.0])
    bidding = Bidding(
        Objective(throughput=1.0, latency=4.0, tail=0.0), ShadowPrices(), 1.0, 2.0, waiting.fleet.period_s
    )
    assert bidding.reward_terms(5.0, waiting, 0, 0) == pytest.approx({"throughput": 1.0, "latency": 4.0 / 9.0})
    slower = {"throughput": 0.4, "latency": 0.4 * 4.0 / 12.0}
    assert bidding.reward_terms(5.0, waiting, 1, 0) == pytest.approx(slower)


def test_the_faster_device_bids_more() -> None:
    waiting = state([Device("d", 4, 1000, period_s=0.1), Device("e", 4, 1000, period_s=0.05)], [(10, 0, 30)])
    bidding = Bidding(Objective(tail=0.0), ShadowPrices(), 1.0, 2.0, waiting.fleet.period_s)
    bid = bidding.bids(5.0, waiting, np.array([0, 1]))
    assert bid.value[1, 0] > bid.value[0, 0]


def test_a_wait_for_a_device_counts_like_a_slower_one() -> None:
    waiting = state([Device("d", 4, 1000, period_s=0.1)], [(10, 0, 30)])
    bidding = Bidding(Objective(tail=0.0), ShadowPrices(), 1.0, 2.0, waiting.fleet.period_s)
    bid = bidding.bids(5.0, waiting, np.array([0]), np.array([3.0]))
    assert bid.value.tolist() == [[pytest.approx(2.0 / (2.0 + 3.0))]]


def test_without_prices_the_smaller_footprint_ranks_first() -> None:
    waiting = state([Device("d", 4, 1000)], [(10, 0, 30), (10, 0, 20), (300, 0, 20)], arrival_s=[0.0] * 3)
    bidding = Bidding(Objective(), ShadowPrices(), 1.0, 100.0, waiting.fleet.period_s)
    bid = bidding.bids(1.0, waiting, np.array([0]))
    assert np.argsort(-bid.ratio[0]).tolist() == [1, 0, 2]


@given(SEEDS)
def test_ranks_follow_the_best_device(seed: int) -> None:
    random = np.random.default_rng(seed)
    cost, reward = random.exponential(1.0, (2, 3, 4))
    value = reward - cost
    raw = np.where(random.random((3, 4)) < 0.2, -np.inf, random.exponential(1.0, (3, 4)))
    ratio = raw.copy()
    rank_by_best_device(reward, value, ratio)
    for i in range(4):
        fits = np.flatnonzero(raw[:, i] > -np.inf)
        np.testing.assert_array_equal(np.flatnonzero(ratio[:, i] > -np.inf), fits)
        if not len(fits):
            continue
        best = fits[np.argmax(value[fits, i])]
        assert ratio[best, i] == raw[best, i]
        for d in fits:
            lost = (value[best, i] - value[d, i]) / reward[best, i]
            assert ratio[d, i] == pytest.approx(raw[best, i] / (1.0 + lost))


def test_lengths_are_exact_or_the_mean_of_the_class() -> None:
    waiting = state([Device("d", 4, 1000, period_s=0.25)], [(1, 0, 30), (1, 1, 0)])
    tokens = expected_tokens(waiting, ShadowPrices(), np.array([0, 1]))
    assert tokens.tolist() == pytest.approx([30.0, MODEL.mean_tokens(1)])
