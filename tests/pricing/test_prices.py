from threading import Barrier, Thread

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.lengths import LengthModel
from bidroute.pricing.column_kernels import running_sums
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import Sample, ShadowPrices
from tests.policies.states import state

GRID = TimeGrid(np.array([0, 2, 6, 20]))
ONE = np.array([0])


def sample(prompt: int, exact: int, reward: float, weight: float, earliest: int = 0) -> Sample:
    whole = (np.array([value]) for value in (prompt, 0, exact))
    return Sample(*whole, np.array([reward]), np.array([weight]), np.array([earliest]))


def priced(slot_price: np.ndarray, kv_price: np.ndarray) -> ShadowPrices:
    prices = ShadowPrices(GRID)
    prices.fit_fleet(len(slot_price))
    prices.slot_price[:], prices.kv_price[:] = slot_price, kv_price
    return prices


def test_costs_at_a_flat_price_are_the_occupancy() -> None:
    prices = priced(np.full((1, 3), 3.0), np.full((1, 3), 5.0))
    waiting = state([Device("d", 4, 100)], [(10, 0, 8)])
    costs = prices.costs(waiting, ONE)
    tokens = 10 * 8 + 8 * 9 / 2
    assert costs.slots[0, 0] == pytest.approx(3.0 * 8 / 4)
    assert costs.kv[0, 0] == pytest.approx(5.0 * tokens / 100)
    assert costs.footprint[0, 0] == pytest.approx(8 / 4 + tokens / 100)


def test_what_lies_beyond_the_horizon_costs_the_last_price() -> None:
    prices = priced(np.array([[0.0, 0.0, 2.0]]), np.zeros((1, 3)))
    waiting = state([Device("d", 1, 1000)], [(0, 0, 6), (0, 0, 106)])
    assert prices.costs(waiting, ONE).slots.tolist() == [[0.0, 200.0]]


def test_capacity_left_is_what_known_leases_leave() -> None:
    # at the middles 0, 3 and 12 of the buckets: 5 more periods live at two of them, 20 at all three
    prices = ShadowPrices(GRID)
    busy = state([Device("d", 4, 100), Device("e", 4, 100)], leases=[(0, 10, 2, 0, 7), (0, 0, 0, 0, 20)])
    prices.refresh_capacity(busy.fleet, busy.lengths, np.array([0, 1]))
    assert prices.slots_left[0].tolist() == pytest.approx([0.5, 0.5, 0.75])
    assert prices.kv_left[0].tolist() == pytest.approx([1 - 0.14, 1 - 0.2, 1 - 0.13])
    assert prices.slots_left[1].tolist() == [1.0, 1.0, 1.0]


def test_the_price_scale_is_reward_per_device_period() -> None:
    prices, fleet = ShadowPrices(GRID), state([Device("d", 4, 100)])
    share = 8 / 4 + (10 * 8 + 36) / 100
    assert prices.price_scale(fleet.fleet, fleet.lengths, sample(10, 8, 6.0, 1.0), ONE) == pytest.approx(6.0 / share)


def test_demand_above_capacity_raises_prices_and_below_it_does_not() -> None:
    prices, idle = ShadowPrices(GRID), state([Device("d", 2, 1000)])
    prices.refresh_capacity(idle.fleet, idle.lengths, ONE)
    prices.step(idle.fleet, idle.lengths, sample(0, 2, 1.0, 1.0), ONE, 10.0, 1.0)
    assert prices.slot_price.max() == 0.0
    prices.step(idle.fleet, idle.lengths, sample(0, 2, 1.0, 5.0), ONE, 10.0, 1.0)
    assert prices.slot_price[0, 0] > 0.0
    assert prices.slot_price[0, 1:].max() == prices.kv_price.max() == 0.0


def test_a_sample_goes_to_the_cheaper_device() -> None:
    prices, idle = ShadowPrices(GRID), state([Device("d", 2, 1000), Device("e", 2, 1000)])
    both = np.array([0, 1])
    prices.refresh_capacity(idle.fleet, idle.lengths, both)
    prices.slot_price[0] = 0.5
    prices.step(idle.fleet, idle.lengths, sample(0, 2, 1.0, 5.0), both, 10.0, 0.1)
    assert prices.slot_price[1, 0] > 0.0
    assert prices.slot_price[0, 0] < 0.5


def test_a_device_that_joins_is_free_and_the_others_keep_their_prices() -> None:
    prices = ShadowPrices(GRID)
    prices.fit_fleet(1)
    prices.slot_price[:] = 2.0
    prices.fit_fleet(3)
    assert prices.slot_price.tolist() == [[2.0] * 3, [0.0] * 3, [0.0] * 3]
    assert prices.slots_left[1:].min() == 1.0
    prices.fit_fleet(2)
    assert len(prices.slot_price) == 3


def test_an_update_of_a_fleet_as_it_was_leaves_a_device_that_joined_since_alone() -> None:
    prices = priced(np.full((3, 3), 2.0), np.full((3, 3), 4.0))
    before = state([Device("d", 4, 100), Device("e", 4, 100)], leases=[(0, 10, 2, 0, 7)])
    prices.refresh_capacity(before.fleet, before.lengths, np.array([0, 1]))
    prices.step(before.fleet, before.lengths, sample(10, 8, 6.0, 1.0), np.array([0, 1]), 10.0, 1.0)
    assert (prices.slot_price[:2] != 2.0).any()
    assert (prices.slot_price[2].tolist(), prices.kv_price[2].tolist()) == ([2.0] * 3, [4.0] * 3)
    assert prices.view(before).slot_price is prices.slot_price


def test_two_threads_that_meet_a_new_device_give_it_one_row() -> None:
    prices, start = ShadowPrices(GRID), Barrier(2)

    def grow() -> None:
        for devices in range(1, 200):
            start.wait()
            prices.fit_fleet(devices)

    threads = [Thread(target=grow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(rows) for rows in prices._rows(199)} == {199}
    assert len(prices.slot_price) == len(prices._kv_square) == 199


def test_a_snapshot_is_of_its_moment() -> None:
    prices = ShadowPrices(GRID)
    prices.fit_fleet(2)
    prices.slot_price[:], prices.kv_price[:] = 4.0, 8.0
    before = prices.snapshot()
    prices.slot_price[1], prices.kv_price[1] = 1.0, 2.0
    assert (before.slot_price.min(), before.kv_price.min()) == (4.0, 8.0)


def test_columns_follow_the_length_model() -> None:
    prices, model = ShadowPrices(GRID), LengthModel(1, 100)
    first = prices.columns(model)
    assert prices.columns(model) is first
    for _ in range(20):
        model.observe(0, 3)
    model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert prices.columns(model).mean_tokens[0] < first.mean_tokens[0]


def test_running_sums_equal_numpys() -> None:
    survival = np.random.default_rng(0).random((3, 7))
    tokens, growth = np.full((2, 3, 8), np.nan)
    running_sums(survival, tokens, growth)
    np.testing.assert_allclose(tokens[:, 1:], np.cumsum(survival, axis=1))
    np.testing.assert_allclose(growth[:, 1:], np.cumsum(survival * np.arange(1, 8), axis=1))
    assert tokens[:, 0].max() == growth[:, 0].max() == 0.0
