import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.requests import Request
from bidroute.policies import Hold, PolicySettings, build_policy
from bidroute.policies.dispatch_kernels import remaining_work
from tests.policies.mini_host import MiniHost, OneClass, Oracle
from tests.policies.states import MODEL, state

SEEING = ["join_shortest_queue", "weighted_least_connections", "least_kv", "least_predicted_work", "lmetric"]
ALL = [*SEEING, "round_robin", "random", "power_of_d"]
THREE = [Device(name, 8, 1000) for name in "abc"]


def chosen(name: str, now, devices=None, **options) -> list[int]:
    policy = build_policy(name, PolicySettings(options=options))
    offered = now.fleet.accepting() if devices is None else devices
    decision = policy.decide(1.0, now, offered)
    assert [a.request_id for a in decision.assignments] == list(range(len(now.queue)))
    return [a.device for a in decision.assignments]


@pytest.mark.parametrize("name", SEEING)
def test_idle_devices_are_filled_in_turn_and_ties_go_to_the_lowest_index(name: str) -> None:
    assert chosen(name, state(THREE, [(10, 0, 20)] * 5)) == [0, 1, 2, 0, 1]


def test_shortest_queue_counts_requests() -> None:
    leases = [(0, 1, 0, 0, 9), (0, 1, 0, 0, 9), (1, 500, 0, 0, 900)]
    assert chosen("join_shortest_queue", state(THREE[:2], [(10, 0, 0)], leases)) == [1]


def test_weighted_connections_count_speed() -> None:
    devices = [Device("slow", 8, 1000, speed=1.0), Device("fast", 8, 1000, speed=3.0)]
    assert chosen("weighted_least_connections", state(devices, [(10, 0, 0)] * 4)) == [1, 1, 0, 1]


def test_least_kv_counts_the_batch_the_engines_queue_and_the_prompt() -> None:
    now = state([Device("a", 8, 100), Device("b", 8, 200)], [(10, 0, 0)], [(1, 30, 8, 0, 0)])
    now.fleet.open(Request(99, 0.0, 40), 0, 0)  # pending: 41 of 100 against 39 of 200
    assert chosen("least_kv", now) == [1]
    assert chosen("least_kv", state([Device("a", 8, 100), Device("b", 8, 200)], [(10, 0, 0)])) == [1]


def test_predicted_work_counts_tokens_to_come_and_speed() -> None:
    leases = [(0, 1, 90, 0, 100), (0, 1, 90, 0, 100), (1, 1, 0, 0, 50)]
    assert chosen("least_predicted_work", state(THREE[:2], [(10, 0, 5)], leases)) == [0]
    fast = [Device("a", 8, 1000), Device("b", 8, 1000, speed=4.0)]
    assert chosen("least_predicted_work", state(fast, [(10, 0, 5)], leases)) == [1]


def test_lmetric_multiplies_prefill_by_batch() -> None:
    now = state(THREE[:2], [(10, 0, 0)], [(0, 1, 0, 0, 0)] * 4)
    now.fleet.open(Request(99, 0.0, 100), 1, 0)  # (100 + 10) × 2 against (0 + 10) × 5
    assert chosen("lmetric", now) == [0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("exact", [0, 5])
def test_a_device_that_can_never_hold_the_request_is_not_chosen(name: str, exact: int) -> None:
    devices = [Device("small", 8, 100), Device("large", 8, 105), Device("blocks", 8, 111, block_size=16)]
    assert chosen(name, state(devices, [(100, 0, exact)] * 4)) == [1] * 4
    assert len(chosen(name, state(devices, [(500, 0, exact)]))) == 1  # fits nowhere: still somewhere


@pytest.mark.parametrize("name", ALL)
def test_only_offered_devices_are_chosen_and_an_empty_offer_chooses_none(name: str) -> None:
    now = state(THREE, [(10, 0, 0)] * 6)
    assert set(chosen(name, now, devices=[1, 2])) <= {1, 2}
    assert build_policy(name).decide(0.0, now, []).assignments == []


@pytest.mark.parametrize("name", ["round_robin", "random"])
def test_choosing_blindly_is_deciding_one_by_one(name: str) -> None:
    now = state([*THREE, Device("d", 8, 1000)])
    now.fleet.drain(1)
    blind, seeing = build_policy(name, PolicySettings(seed=5)), build_policy(name, PolicySettings(seed=5))
    at_once = [*blind.choose_blindly(7, now), *blind.choose_blindly(0, now), *blind.choose_blindly(6, now)]
    one_by_one = []
    for i in range(13):
        now.queue.add(Request(i, 0.0, 10), 0)
        one_by_one.append(seeing.decide(0.0, now, now.fleet.accepting()).assignments[0].device)
        now.queue.remove(i)
    assert at_once == one_by_one
    assert 1 not in at_once


@pytest.mark.parametrize("name", ["round_robin", "random"])
def test_unlike_devices_cannot_be_chosen_blindly(name: str) -> None:
    now = state([Device("a", 8, 100), Device("b", 8, 200)])
    assert build_policy(name).choose_blindly(3, now) is None
    assert build_policy("join_shortest_queue").choose_blindly(3, now) is None


def test_round_robin_goes_on_where_a_device_left() -> None:
    now, policy = state([*THREE]), build_policy("round_robin")
    assert policy.choose_blindly(2, now).tolist() == [0, 1]
    now.fleet.leave(2)
    assert policy.choose_blindly(3, now).tolist() == [0, 1, 0]


def test_power_of_all_devices_is_the_shortest_queue_and_of_one_is_random() -> None:
    leases = [(0, 1, 0, 0, 0), (2, 1, 0, 0, 0)]
    assert chosen("power_of_d", state(THREE, [(1, 0, 0)], leases), d=3) == [1]
    spread = chosen("power_of_d", state(THREE, [(1, 0, 0)] * 300), d=1)
    assert min(np.bincount(spread)) > 60


@pytest.mark.parametrize("name", ALL)
def test_an_explanation_names_the_choice_and_all_scores_and_changes_nothing(name: str) -> None:
    now = state(THREE, [(10, 0, 0), (20, 0, 0)], [(0, 5, 5, 0, 0)])
    policy = build_policy(name)
    explanations = policy.explain(3.0, now, [0, 1, 2], [0])
    assert explanations == policy.explain(3.0, now, [0, 1, 2], [0])
    assert sorted(e.device for e in explanations) == [0, 1, 2]
    assert [e.held_by for e in explanations] == [None, Hold.ORDER, Hold.ORDER]
    assert policy.decide(3.0, now, [0, 1, 2]).assignments[0].device == explanations[0].device
    assert all(e.value == -e.price["score"] for e in explanations)
    assert (explanations[0].wait_s, explanations[0].rank, explanations[0].waiting) == (3.0, 0, 2)


@pytest.mark.parametrize("name", SEEING)
@given(seed=st.integers(0, 10_000), shift=st.permutations([0, 1, 2]))
@settings(max_examples=25, deadline=None)
def test_invariant_6_permuting_identical_devices_permutes_the_choice(name: str, seed: int, shift: list[int]) -> None:
    random = np.random.default_rng(seed)
    # Different loads on every device, so that no tie has to be broken by index.
    loads = [[(int(random.integers(1, 300)), int(random.integers(0, 50)))] * (g + 1) for g in range(3)]
    assume(len({sum(prompt + decoded + 1 for prompt, decoded in load) for load in loads}) == 3)
    leases = [(g, prompt, decoded, 0, 0) for g in range(3) for prompt, decoded in loads[g]]
    moved = [(shift[g], *rest) for g, *rest in leases]
    waiting = [(10, 0, 0)]
    assert chosen(name, state(THREE, waiting, moved)) == [shift[chosen(name, state(THREE, waiting, leases))[0]]]


@settings(max_examples=60, deadline=None)
@given(
    leases=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 40_000), st.integers(0, 1), st.integers(0, 90)),
        max_size=30,
    )
)
def test_remaining_work_agrees_with_its_twin(leases) -> None:
    now = state(THREE, [], leases)
    residual = np.random.default_rng(0).random((2, MODEL.horizon_tokens + 1)) + 1.0
    devices, work = np.array([2, 0]), np.empty(2)
    remaining_work(now.fleet.pool.columns, now.fleet.pool.offset, now.fleet.pool.count, devices, residual, work)
    for d, g in enumerate(devices):
        expected = 0.0
        for device, _, decoded, length_class, exact in leases:
            if device == g:
                rest = residual[length_class, min(decoded, MODEL.horizon_tokens)]
                expected += max(exact - decoded, 1) if exact else rest
        assert work[d] == pytest.approx(expected)


@pytest.mark.parametrize("name", ALL)
def test_every_request_is_served_to_its_end(name: str) -> None:
    random = np.random.default_rng(3)
    outputs = random.integers(1, 30, 80).tolist()
    requests = [
        Request(i, 0.5 * i, int(p), predicted_tokens=outputs[i]) for i, p in enumerate(random.integers(1, 60, 80))
    ]
    for predictor in (Oracle(), OneClass()):
        host = MiniHost(build_policy(name), [Device("a", 4, 100), Device("b", 3, 150, 4)], predictor)
        host.run(requests, outputs)
        assert len(host.finish_s) == 80
        assert not host.controller.state.fleet.totals[:5].any()
