from typing import Any

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.objective import Objective, parse_objective
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies import PolicySettings, Timing, build_policy
from bidroute.policies.base import Decision, Hold
from bidroute.policies.bid_price import LIMITS, BidPrice
from bidroute.policies.release_kernels import Limits
from tests.policies.states import state

ROOMY = Device("d", 4, 10_000, period_s=1.0)
SAME_MOMENT = [0.0] * 8


def decided(policy: BidPrice, waiting: RoutingState, devices: tuple[int, ...] = (0,), now_s: float = 1.0) -> Decision:
    return policy.decide(now_s, waiting, devices)


def ids(decision: Decision) -> list[int]:
    return [assignment.request_id for assignment in decision.assignments]


def priced(slot_price: float, devices: int = 1) -> BidPrice:
    policy = BidPrice(Objective(threshold_s=1000.0))
    policy.shadow_prices.fit_fleet(devices)
    policy.shadow_prices.slot_price[:] = slot_price
    return policy


def test_the_smaller_footprint_goes_first() -> None:
    waiting = state([Device("d", 2, 10_000)], [(10, 0, 30), (10, 0, 5), (10, 0, 10)], arrival_s=SAME_MOMENT)
    decision = decided(BidPrice(Objective()), waiting)
    assert ids(decision) == [1, 2]
    assert decision.held == {Hold.SLOTS: 1}


def test_a_reward_below_the_price_is_held_and_the_price_of_idle_room_is_cut() -> None:
    waiting = state([ROOMY], [(10, 0, 30)], leases=[(0, 10, 1, 0, 30)])
    policy = priced(4.0)  # one slot for 30 periods costs 30, the reward is 1 at most
    decision = decided(policy, waiting)
    assert ids(decision) == []
    assert decision.held == {Hold.PRICE: 1}
    assert (
        policy.prices().slot_price[0].tolist() == [4.0 * Limits(*LIMITS).idle_cut] * policy.shadow_prices.grid.buckets
    )


def test_a_full_device_keeps_its_price() -> None:
    waiting = state([Device("d", 1, 10_000)], [(10, 0, 30)], leases=[(0, 10, 1, 0, 30)])
    policy = priced(0.001)
    assert decided(policy, waiting).held == {Hold.SLOTS: 1}
    assert policy.prices().slot_price.max() == 0.001


def test_an_empty_device_takes_one_below_its_price() -> None:
    waiting = state([ROOMY, ROOMY], [(10, 0, 30), (10, 0, 20), (10, 0, 25)], arrival_s=SAME_MOMENT)
    decision = decided(priced(4.0, devices=2), waiting, (0, 1))
    assert sorted(ids(decision)) == [1, 2]
    assert sorted(assignment.device for assignment in decision.assignments) == [0, 1]
    assert decision.held == {Hold.PRICE: 1}


def test_what_could_never_run_here_does_not_keep_out_what_can() -> None:
    """A hundred that only the large device could hold rank first on the small one, where nothing has a price."""
    devices = [Device("large", 2, 10_000), Device("small", 2, 500)]
    waiting = state(devices, [(5_000, 0, 10)] * 100 + [(100, 0, 100)] * 2, arrival_s=[0.0] * 102)
    assert len(ids(decided(priced(0.001, devices=2), waiting, (1,)))) == 2
    alone = state(devices, [(5_000, 0, 10)] * 200, arrival_s=[0.0] * 200)
    policy = priced(0.0, devices=2)
    policy.shadow_prices.slot_price[0] = 0.1
    assert [assignment.device for assignment in decided(policy, alone, (0, 1)).assignments] == [0]


def test_what_is_worth_nothing_takes_room_that_nobody_wants() -> None:
    waiting = state([ROOMY], [(10, 0, 30)] * 6, arrival_s=SAME_MOMENT)
    policy = BidPrice(parse_objective("throughput=0,goodput=1,tail=0"))
    late = RoutingState(waiting.queue, waiting.fleet, waiting.lengths)
    late.queue.e2e_slo_s[:] = 0.5
    assert len(ids(decided(policy, late))) == 4


def test_kv_holds_for_now_and_for_later() -> None:
    leases = [(0, 50, 0, 0, 20)]
    now = state([Device("d", 4, 100)], [(60, 0, 5)], leases=leases)
    assert decided(BidPrice(Objective(), max_skips=0), now).held == {Hold.KV_NOW: 1}
    later = state([Device("d", 4, 100)], [(40, 0, 30)], leases=leases)
    assert decided(BidPrice(Objective(), max_skips=0), later).held == {Hold.KV_FUTURE: 1}


def test_one_that_ranks_first_is_passed_over_so_often_and_then_reserves() -> None:
    # the long wait puts request 0 first; it does not fit beside the lease, the small one would
    waiting = state([Device("d", 4, 100)], [(60, 0, 5), (5, 0, 5)], [(0, 50, 0, 0, 20)], arrival_s=[-1000.0, 0.0])
    policy = BidPrice(Objective(threshold_s=10.0), max_skips=1)
    assert ids(decided(policy, waiting)) == [1]
    assert waiting.queue.skips.tolist() == [1, 0]
    assert ids(decided(policy, waiting)) == []


def test_nobody_waits_or_nobody_is_ready() -> None:
    assert decided(BidPrice(Objective()), state([ROOMY])) == Decision()
    assert decided(BidPrice(Objective()), state([ROOMY], [(1, 0, 1)]), ()) == Decision()


def test_held_and_released_are_everybody() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        devices = [Device("d", int(random.integers(1, 4)), int(random.integers(80, 200))) for _ in range(3)]
        jobs = [(int(random.integers(0, 80)), 0, int(random.integers(1, 40))) for _ in range(20)]
        waiting = state(devices, jobs, [(0, 20, 3, 0, 20)])
        decision = decided(priced(float(random.choice([0.0, 0.05, 1.0])), devices=3), waiting, (0, 1, 2))
        assert sum(decision.held.values()) + len(decision.assignments) == 20


def test_large_queues_are_ranked_on_some_devices_and_offered_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(10, 0, 1 + k % 50) for k in range(400)]
    full = decided(BidPrice(Objective()), state([ROOMY] * 3, jobs, arrival_s=[0.0] * 400), (0, 1, 2))
    monkeypatch.setattr("bidroute.policies.bid_price.LIMITS", (300, 48, 0.5))
    short = decided(BidPrice(Objective()), state([ROOMY] * 3, jobs, arrival_s=[0.0] * 400), (0, 1, 2))
    assert short == full
    assert len(full.assignments) == 12


def test_a_small_empty_device_is_not_forgotten_in_a_large_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bidroute.policies.bid_price.LIMITS", (6, 2, 0.5))
    devices = [Device("large", 2, 50_000)] * 5 + [Device("small", 2, 500)]
    waiting = state(devices, [(40_000, 0, 10)] * 60 + [(100, 0, 10)], arrival_s=[0.0] * 61)
    waiting.queue.priority[:60] = 5.0
    decision = decided(BidPrice(Objective()), waiting, tuple(range(6)))
    assert [a.request_id for a in decision.assignments if a.device == 5] == [60]


def test_equals_go_to_the_least_busy() -> None:
    fleet = [Device("d", 8, 10_000)] * 4
    waiting = state(fleet, [(10, 0, 30)] * 8, leases=[(0, 10, 1, 0, 30)] * 2, arrival_s=SAME_MOMENT)
    decision = decided(BidPrice(Objective()), waiting, (0, 1, 2, 3))
    assert np.bincount([assignment.device for assignment in decision.assignments]).tolist() == [0, 3, 3, 2]


def test_one_that_waits_for_its_device_keeps_no_other() -> None:
    """Request 0 fits the large device only, which is full; the small one goes on taking what fits it."""
    devices = [Device("large", 4, 1000), Device("small", 4, 100)]
    jobs = [(500, 0, 5)] + [(5, 0, 5)] * 3
    waiting = state(devices, jobs, [(0, 700, 0, 0, 200)], arrival_s=[-1000.0, 0.0, 0.0, 0.0])
    decision = decided(BidPrice(Objective(threshold_s=10.0), max_skips=0), waiting, (0, 1))
    assert [assignment.device for assignment in decision.assignments] == [1, 1, 1]


# --- the threshold --------------------------------------------------------------------------------------------------


def test_a_given_threshold_holds() -> None:
    assert BidPrice(Objective(threshold_s=12.0)).threshold_s == 12.0


def test_from_the_first_arrival_on_the_threshold_is_no_less_than_a_service_time() -> None:
    policy, waiting = BidPrice(Objective(patience=0.8)), state([ROOMY], [(10, 0, 0)], arrival_s=[0.0])
    policy.request_arrived(0.0, Request(0, 0.0, 10), 0)
    policy.update(0.0, waiting)
    assert policy.threshold_s == pytest.approx(0.8 * waiting.lengths.mean_tokens(0) * ROOMY.period_s)


@pytest.mark.parametrize(("exact", "patience"), [([5, 5], 2.0), ([0, 0], 1.24), ([5, 0], 2.0)])
def test_it_is_patient_where_lengths_are_known(exact: list[int], patience: float) -> None:
    policy = BidPrice(Objective(patience=2.0))
    waiting = state([ROOMY], [(10, 0, tokens) for tokens in exact], arrival_s=SAME_MOMENT[:2])
    policy.request_arrived(0.0, Request(0, 0.0, 10), 0)
    policy.update(0.0, waiting)
    assert policy.threshold_s == pytest.approx(patience * waiting.lengths.mean_tokens(0) * ROOMY.period_s)


def test_a_burst_at_the_start_leaves_prices_in_proportion_to_rewards() -> None:
    """No forecast can follow from one moment, so a fleet with room for all of them charges nothing."""
    policy, waiting = BidPrice(Objective()), state([ROOMY], [(10, 0, 5)] * 4, arrival_s=SAME_MOMENT)
    for k in range(4):
        policy.request_arrived(0.0, Request(k, 0.0, 10), 0)
    policy.update(0.0, waiting)
    assert policy.prices().slot_price.max() == 0.0
    assert len(ids(decided(policy, waiting, now_s=0.0))) == 4


# --- explanations ---------------------------------------------------------------------------------------------------


def test_explanations_say_what_the_decision_does_and_change_nothing() -> None:
    jobs = [(10, 0, 5), (10, 0, 500), (9_990, 0, 5), (20, 0, 5)]
    waiting = state([Device("d", 2, 10_000)], jobs, leases=[(0, 100, 1, 0, 500)], arrival_s=SAME_MOMENT)
    policy = priced(0.01)
    before = policy.prices()
    taken, dear, large, behind = policy.explain(1.0, waiting, [0], [0, 1, 2, 3])
    assert (taken.held_by, taken.rank, taken.instead) == (None, 0, [])
    assert (dear.held_by, dear.instead) == (Hold.PRICE, [0])
    assert large.held_by is Hold.KV_NOW
    assert behind.held_by is Hold.ORDER
    assert {explanation.waiting for explanation in (taken, dear, large, behind)} == {4}
    for explanation in (taken, dear, large, behind):
        worth = sum(explanation.reward.values()) - sum(explanation.price.values())
        assert explanation.value == pytest.approx(worth)
    np.testing.assert_array_equal(policy.prices().slot_price, before.slot_price)
    assert waiting.queue.skips.max() == 0
    assert ids(decided(policy, waiting)) == [0]


def test_an_update_beside_an_explanation_keeps_its_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread steps the prices while the decision is taken for the account of it."""
    waiting, policy = state([ROOMY], [(10, 0, 5)], arrival_s=SAME_MOMENT), priced(0.01)
    take = policy._take

    def take_while_prices_step(*arguments: Any) -> Any:
        taken = take(*arguments)
        policy.shadow_prices.slot_price[:] = 7.0
        return taken

    monkeypatch.setattr(policy, "_take", take_while_prices_step)
    (account,) = policy.explain(1.0, waiting, [0], [0])
    assert account.held_by is None
    assert policy.prices().slot_price.min() == 7.0


def test_nothing_to_explain_when_nobody_is_ready() -> None:
    assert BidPrice(Objective()).explain(0.0, state([ROOMY], [(1, 0, 1)]), [], [0]) == []


# --- the registry ---------------------------------------------------------------------------------------------------


def test_it_is_registered_with_its_options() -> None:
    policy = build_policy("bid_price", PolicySettings(3, "throughput=2", {"risk_z": 0.5, "max_skips": 2}))
    assert isinstance(policy, BidPrice)
    assert policy.timing is Timing.WHEN_STARTABLE
    assert policy.objective == parse_objective("throughput=2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"z": 1}, "policy bid_price has no option 'z'; choose from: forecast, max_skips, risk_z, step"),
        ({"forecast": 2}, "forecast=2; expected 0"),
        ({"risk_z": -1.0}, "risk_z=-1.0"),
        ({"risk_z": float("nan")}, "risk_z=nan"),
        ({"risk_z": "much"}, "risk_z='much'"),
        ({"max_skips": -1}, "max_skips=-1"),
        ({"max_skips": 1.5}, "max_skips=1.5"),
        ({"step": 0.0}, "step=0; expected a share of the price scale"),
        ({"step": 2}, "step=2; expected"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_policy("bid_price", PolicySettings(options=options))
