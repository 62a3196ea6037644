import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bidroute.pricing.prices import PriceSnapshot
from bidroute.router.state import WAIT_EDGES_S, RouterState, count_waits, device_prices
from tests.router.fleet_fakes import busy_state


def test_state_survives_json():
    state = busy_state()
    assert msgspec.json.decode(msgspec.json.encode(state), type=RouterState) == state


def test_prices_of_one_slot_and_of_a_thousand_tokens():
    snapshot = PriceSnapshot(
        edges_periods=np.array([0, 1, 4]),
        slot_price=np.array([[0.0, 0.0], [8.0, 4.0]]),
        kv_price=np.array([[0.0, 0.0], [2.0, 1.0]]),
    )
    prices = device_prices(snapshot, 1, batch_slots=4, kv_tokens=500)
    assert prices.slot == [2.0, 1.0]
    assert prices.kv == [4.0, 2.0]
    assert prices.tokens == []


def test_the_price_of_iterations_is_shown_where_a_budget_is_known():
    one = np.ones((1, 2))
    snapshot = PriceSnapshot(np.array([0, 1, 4]), one, one, np.array([[4.0, 2.0]]))
    assert device_prices(snapshot, 0, 1, 1, token_budget=2000).tokens == [2.0, 1.0]
    assert device_prices(snapshot, 0, 1, 1, token_budget=0).tokens == []


def test_no_prices_where_there_are_none():
    snapshot = PriceSnapshot(np.array([0, 1]), np.ones((1, 1)), np.ones((1, 1)))
    for nothing in (
        device_prices(None, 0, 1, 1),
        device_prices(snapshot, 1, 1, 1),
        device_prices(snapshot, -1, 1, 1),
        device_prices(snapshot, 0, 0, 1),
    ):
        assert nothing == ([], [], [])


def test_waits_on_an_edge_are_below_it():
    assert count_waits([0.0, 0.1, 0.11, 100.0, 101.0]) == [2, 1, 0, 0, 0, 0, 1, 1]
    assert count_waits([]) == [0] * (len(WAIT_EDGES_S) + 1)


@given(st.lists(st.floats(0, 1e5), max_size=50))
def test_every_wait_is_counted_once(waits):
    assert sum(count_waits(waits)) == len(waits)
