import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.requests import Request
from bidroute.policies import Hold, PolicySettings, build_policy
from bidroute.policies.central import rising
from tests.policies.mini_host import MiniHost, NoisyClasses, OneClass, Oracle
from tests.policies.states import state
from tests.policies.test_registry import CENTRAL

ONE = [Device("a", 2, 1000)]
TWO = [Device("a", 4, 1000), Device("b", 4, 1000)]
NAMES = sorted(CENTRAL)


def released(name: str, now, devices=(0,), now_s: float = 10.0, **options) -> list[int]:
    decision = build_policy(name, PolicySettings(options=options)).decide(now_s, now, devices)
    assert sum(decision.held.values()) + len(decision.assignments) == len(now.queue)
    return [a.request_id for a in decision.assignments]


def test_fifo_goes_by_entry_and_with_ageing_by_arrival() -> None:
    now = state(ONE, [(5, 0, 5)] * 3, arrival_s=[3.0, 2.0, 1.0])
    assert released("fifo", now) == [0, 1]
    assert released("fifo+ageing", now) == [2, 1]


def test_shortest_first_goes_by_output_and_least_footprint_by_what_is_occupied() -> None:
    now = state([Device("a", 1, 1000)], [(900, 0, 8), (5, 0, 9), (5, 0, 10)])
    assert released("shortest_first", now) == [0]
    assert released("least_footprint", now) == [1]


def test_ties_go_to_the_earlier_entry() -> None:
    now = state(ONE, [(5, 0, 0)] * 6)
    now.queue.remove(0)  # the last row moves into its place
    for name in NAMES:
        decision = build_policy(name).decide(10.0, now, [0])
        assert [a.request_id for a in decision.assignments] == [1, 2]


@given(keys=st.lists(st.sampled_from([-1.5, 0.0, 2.0, 3.5]), max_size=20), data=st.data())
def test_rising_is_the_sort_by_key_then_sequence(keys: list[float], data) -> None:
    sequence = np.array(data.draw(st.permutations(range(len(keys)))), dtype=np.int64)
    order = rising(np.array(keys), sequence)
    assert order.tolist() == np.lexsort((sequence, keys)).tolist()


def test_ageing_lets_a_large_request_go_first_within_its_bound() -> None:
    # Sizes 40 and 10 tokens, mean 25: the large one leads newcomers after (40 − 10) / 25 × 10 s = 12 s.
    for now_s, first in ((11.0, 1), (13.0, 0)):
        now = state([Device("a", 1, 1000)], [(5, 0, 40), (5, 0, 10)], arrival_s=[0.0, now_s])
        assert released("shortest_first+ageing", now, now_s=now_s, ageing_s=10.0) == [first]
        assert released("shortest_first", now, now_s=now_s) == [1]


def test_safety_holds_what_plain_releases() -> None:
    now = state([Device("a", 4, 10)], [(1, 0, 5), (1, 0, 5)])
    for base in ("fifo", "shortest_first", "least_footprint"):
        assert released(base, now) == [0, 1]
        assert released(base + "+safety", now) == [0]
        decision = build_policy(base + "+safety").decide(10.0, now, [0])
        assert decision.held == {Hold.KV_FUTURE: 1}


def test_fifo_is_strict_unless_told_otherwise() -> None:
    now = state([Device("a", 4, 100)], [(90, 0, 1), (1, 0, 1), (2, 0, 1)], [(0, 30, 0, 0, 50)])
    assert released("fifo", now) == []
    assert released("fifo", now, max_skips=1) == [1]
    assert now.queue.skips[now.queue.position(0)] == 1
    assert released("fifo", now, max_skips=1) == []


def test_a_full_fleet_holds_all_for_slots() -> None:
    now = state(ONE, [(5, 0, 5)] * 3, [(0, 1, 1, 0, 0)] * 2)
    for name in NAMES:
        assert build_policy(name).decide(0.0, now, [0]).held == {Hold.SLOTS: 3}
    assert build_policy("fifo").decide(0.0, now, []).held == {Hold.SLOTS: 3}
    assert build_policy("fifo").decide(0.0, state(ONE), [0]).held == {}


def test_selective_push_leaves_a_device_alone_while_something_waits_in_its_engine() -> None:
    now = state(TWO, [(5, 0, 5)] * 2, [(0, 1, 0, 0, 0), (1, 1, 0, 0, 0), (1, 1, 0, 0, 0)])
    now.fleet.preempt(1000)
    decision = build_policy("selective_push").decide(0.0, now, [0, 1])
    assert [(a.request_id, a.device) for a in decision.assignments] == [(0, 1), (1, 1)]
    assert build_policy("selective_push").decide(0.0, now, [0]).held == {Hold.ORDER: 2}
    assert released("fifo", now, devices=(0,)) == [0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_an_explanation_agrees_with_the_decision_and_changes_nothing(name: str) -> None:
    waiting = [(900, 0, 9), (60, 1, 0), (990, 0, 2), (5, 1, 7), (80, 0, 0)]
    now = state([Device("a", 3, 1000)], waiting, [(0, 300, 10, 0, 0)])
    policy = build_policy(name)
    before = now.queue.skips.copy()
    explanations = policy.explain(20.0, now, [0], now.queue.ids.tolist())
    assert np.array_equal(before, now.queue.skips)
    decision = policy.decide(20.0, now, [0])
    taken = [a.request_id for a in decision.assignments]
    assert [e.request_id for e in explanations if e.held_by is None] == sorted(taken)
    assert sorted(e.rank for e in explanations) == [0, 1, 2, 3, 4]
    for e in explanations:
        assert e.instead == ([] if e.request_id in taken else taken)
        assert e.value == pytest.approx(sum(e.reward.values()))
        assert e.wait_s == 20.0 - e.request_id
    held = [e.held_by for e in explanations if e.held_by is not None]
    assert {hold: held.count(hold) for hold in held} == decision.held


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_invariant_5_an_hour_later_is_the_same(data) -> None:
    name = data.draw(st.sampled_from(NAMES))
    waiting = data.draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1), st.sampled_from([0, 10, 200])), max_size=12)
    )
    arrivals = [float(x) for x in data.draw(st.permutations(range(len(waiting))))]
    now = state(TWO, waiting, [(0, 100, 3, 0, 0)], arrivals)
    later = state(TWO, waiting, [(0, 100, 3, 0, 0)], [3600.0 + x for x in arrivals])
    first = build_policy(name).decide(20.0, now, [0, 1])
    assert first == build_policy(name).decide(3620.0, later, [0, 1])


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_invariant_6_permuting_identical_devices_permutes_the_assignments(data) -> None:
    name = data.draw(st.sampled_from(NAMES))
    shift = data.draw(st.permutations([0, 1, 2]))
    waiting = data.draw(
        st.lists(st.tuples(st.sampled_from([0, 50, 400]), st.integers(0, 1), st.sampled_from([0, 10, 200])), max_size=3)
    )
    devices = [Device(name, 8, 5000) for name in "abc"]
    leases = [(g, prompt, 5, 0, 0) for g, prompt in enumerate((101, 527, 971))]  # unlike: no tie to break by index
    plain = build_policy(name).decide(9.0, state(devices, waiting, leases), [0, 1, 2])
    moved = build_policy(name).decide(9.0, state(devices, waiting, [(shift[g], *r) for g, *r in leases]), [0, 1, 2])
    assert [(a.request_id, shift[a.device]) for a in plain.assignments] == [
        (a.request_id, a.device) for a in moved.assignments
    ]


def some_requests(count: int, seed: int) -> tuple[list[Request], list[int]]:
    random = np.random.default_rng(seed)
    outputs = np.minimum(random.lognormal(2.5, 0.9, count).astype(int) + 1, 90).tolist()
    prompts = random.integers(1, 60, count)
    arrivals = np.cumsum(random.exponential(1.0, count))
    return [Request(i, float(arrivals[i]), int(prompts[i]), predicted_tokens=outputs[i]) for i in range(count)], outputs


@pytest.mark.parametrize("name", [name for name in NAMES if "safety" in name])
@pytest.mark.parametrize("block_size", [1, 16])
def test_invariant_1_known_lengths_and_no_margin_never_preempt(name: str, block_size: int) -> None:
    requests, outputs = some_requests(150, seed=4)
    devices = [Device("a", 8, 400, block_size), Device("b", 4, 250, block_size)]
    host = MiniHost(build_policy(name, PolicySettings(options={"risk_z": 0})), devices, Oracle())
    host.run(requests, outputs)
    assert len(host.finish_s) == 150
    assert host.preemptions == 0
    assert all(peak <= device.kv_tokens for peak, device in zip(host.peak_tokens, devices, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("predictor", [OneClass, NoisyClasses])
def test_invariant_9_every_request_that_fits_starts_and_finishes(name: str, predictor) -> None:
    requests, outputs = some_requests(120, seed=5)
    # The first of them can only run alone, on one of the devices.
    requests[0], outputs[0] = Request(0, 0.0, 380, predicted_tokens=15), 15
    host = MiniHost(build_policy(name), [Device("a", 8, 400), Device("b", 4, 250)], predictor())
    host.run(requests, outputs)
    assert len(host.finish_s) == 120
    assert not host.controller.state.fleet.totals[:5].any()
    assert len(host.controller.state.queue) == 0


def test_invariant_9_overtaking_is_bounded_for_the_best() -> None:
    # A large request arrives first while small ones keep coming: it starts once its skips are used up.
    small = [Request(i, 0.2 * i, 5, predicted_tokens=10) for i in range(1, 400)]
    requests, outputs = [Request(0, 0.1, 950, predicted_tokens=10), *small], [10] * 400
    options = {"max_skips": 5}
    host = MiniHost(build_policy("fifo+safety", PolicySettings(options=options)), ONE, Oracle())
    host.run(sorted(requests, key=lambda r: r.arrival_s), outputs)
    started_before = sum(start_s < host.start_s[0] for start_s in host.start_s.values())
    assert started_before <= 5 + ONE[0].batch_slots


def test_invariant_11_one_slot_serves_the_short_job_first() -> None:
    requests = [Request(0, 0.0, 1, predicted_tokens=10), Request(1, 0.0, 1, predicted_tokens=1)]
    for name in ("shortest_first", "least_footprint", "least_footprint+safety+ageing"):
        host = MiniHost(build_policy(name), [Device("a", 1, 100)], Oracle())
        host.run(requests, [10, 1])
        assert sum(host.finish_s.values()) == 12.0


@pytest.mark.parametrize(
    ("prompt", "output", "together"), [(1, 5, False), (1, 4, True)], ids=["peaks 6 and 6", "peaks 5 and 5"]
)
def test_invariant_11_two_requests_in_ten_tokens(prompt: int, output: int, together: bool) -> None:
    requests = [Request(i, 0.0, prompt, predicted_tokens=output) for i in range(2)]
    host = MiniHost(build_policy("fifo+safety", PolicySettings(options={"risk_z": 0})), [Device("a", 2, 10)], Oracle())
    host.run(requests, [output] * 2)
    assert (host.start_s[0] == host.start_s[1]) is together
    assert host.preemptions == 0


def test_same_seed_same_run() -> None:
    requests, outputs = some_requests(80, seed=6)
    runs = []
    for _ in range(2):
        host = MiniHost(build_policy("least_footprint+safety+ageing"), TWO, NoisyClasses())
        host.run(requests, outputs)
        runs.append((host.start_s, host.finish_s))
    assert runs[0] == runs[1]
