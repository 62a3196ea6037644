"""Bids against the objective and the prices they come from, and their kernels against twins in plain Python."""

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
from bidroute.policies.admission_kernels import BEHIND, KV_NOW, NO_SLOT, RELEASED
from bidroute.policies.bid_kernels import PRICED_OUT, tally
from bidroute.policies.bids import PRICE_FLOOR, Bidding, best_first, expected_tokens
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
    devices, rows = np.array([2, 0]), random.permutation(6)[:4]
    bid = bidding.bids(60.0, waiting, devices, rows)
    costs = prices.costs(waiting, devices, rows)
    for d, device in enumerate(devices):
        for k, row in enumerate(rows):
            reward = sum(bidding.reward_terms(60.0, waiting, int(device), int(row)).values())
            cost = costs.slots[d, k] + costs.kv[d, k]
            assert bid.value[d, k] == pytest.approx(reward - cost)
            peak_tokens = waiting.queue.prompt_tokens[row] + max(waiting.queue.exact_tokens[row], 1)
            ratio = reward / (cost + PRICE_FLOOR * 0.5 * costs.footprint[d, k])
            fits = peak_tokens <= waiting.fleet.usable_kv_tokens[device]
            assert bid.ratio[d, k] == pytest.approx(ratio if fits else -np.inf)


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
    bid = bidding.bids(5.0, waiting, np.array([0, 1]), np.array([0]))
    assert bid.value[1, 0] > bid.value[0, 0]


def test_a_wait_for_a_device_counts_like_a_slower_one() -> None:
    waiting = state([Device("d", 4, 1000, period_s=0.1)], [(10, 0, 30)])
    bidding = Bidding(Objective(tail=0.0), ShadowPrices(), 1.0, 2.0, waiting.fleet.period_s)
    bid = bidding.bids(5.0, waiting, np.array([0]), np.array([0]), np.array([3.0]))
    assert bid.value.tolist() == [[pytest.approx(2.0 / (2.0 + 3.0))]]


def test_without_prices_the_smaller_footprint_ranks_first() -> None:
    waiting = state([Device("d", 4, 1000)], [(10, 0, 30), (10, 0, 20), (300, 0, 20)], arrival_s=[0.0] * 3)
    bidding = Bidding(Objective(), ShadowPrices(), 1.0, 100.0, waiting.fleet.period_s)
    bid = bidding.bids(1.0, waiting, np.array([0]), np.arange(3))
    assert np.argsort(-bid.ratio[0]).tolist() == [1, 0, 2]


def test_lengths_are_exact_or_the_mean_of_the_class() -> None:
    waiting = state([Device("d", 4, 1000, period_s=0.25)], [(1, 0, 30), (1, 1, 0)])
    tokens = expected_tokens(waiting, ShadowPrices(), np.array([0, 1]))
    assert tokens.tolist() == pytest.approx([30.0, MODEL.mean_tokens(1)])


# --- kernels --------------------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 12))
def test_best_first_is_a_stable_sort(seed: int, keep: int) -> None:
    ratio = np.random.default_rng(seed).integers(0, 4, 8).astype(np.float64)
    assert best_first(ratio, keep).tolist() == sorted(range(8), key=lambda k: -ratio[k])[:keep]


def tallied(
    value: np.ndarray, order: list[int], verdicts: list[int], released: list[int]
) -> tuple[dict[int, int], list[int]]:
    counts, leaves_room = np.full(PRICED_OUT + 1, 9), np.full(len(value), 9)
    tally(value, *(np.array(part, dtype=np.int64) for part in (order, verdicts, released)), counts, leaves_room)
    return {verdict: int(count) for verdict, count in enumerate(counts) if count}, leaves_room.tolist()


def tally_twin(
    value: np.ndarray, order: list[int], verdicts: list[int], released: list[int]
) -> tuple[dict[int, int], list[int]]:
    m = value.shape[1]
    gone = {order[k] % m for k in released}
    counts: dict[int, int] = {}
    turned_down = set()
    for i in set(range(m)) - gone:
        mine = [k for k in range(len(order)) if order[k] % m == i and value[order[k] // m, i] > 0]
        turned_down |= {order[k] // m for k in mine}
        if value[:, i].max() <= 0:
            counts[PRICED_OUT] = counts.get(PRICED_OUT, 0) + 1
        elif mine:
            furthest = max(verdicts[k] for k in mine)
            counts[furthest] = counts.get(furthest, 0) + 1
    return counts, [int(value[d].min() <= 0 and d not in turned_down) for d in range(len(value))]


@given(SEEDS)
def test_tally_equals_its_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    value = random.integers(-2, 3, (int(random.integers(1, 4)), int(random.integers(1, 6)))).astype(np.float64)
    order = random.permutation(value.size)[: int(random.integers(0, value.size + 1))].tolist()
    verdicts = random.choice([NO_SLOT, KV_NOW, BEHIND], len(order)).tolist()
    released, taken = [], set()
    for k, pair in enumerate(order):
        if pair % value.shape[1] not in taken and random.random() < 0.3:
            released.append(k)
            taken.add(pair % value.shape[1])
            verdicts[k] = RELEASED
    assert tallied(value, order, verdicts, released) == tally_twin(value, order, verdicts, released)


def test_who_was_released_elsewhere_is_not_held_here() -> None:
    # request 0 goes to device 1; device 0, which request 1 finds too dear, is left with room
    value = np.array([[1.0, -1.0], [2.0, 1.0]])
    assert tallied(value, [2, 0, 3], [RELEASED, BEHIND, KV_NOW], [0]) == ({KV_NOW: 1}, [1, 0])


def test_below_its_price_but_released_to_an_empty_device_is_not_held() -> None:
    assert tallied(np.array([[-1.0, -2.0]]), [0, 1], [RELEASED, BEHIND], [0]) == ({PRICED_OUT: 1}, [1])
