"""Policies that release when startable: small exact cases, the contract, and a single device as its own oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.state import RoutingState
from bidroute.errors import BidrouteError
from bidroute.policies.base import Assignment, Decision, Policy, Timing
from bidroute.simulator import EngineConfig, Outcome, RunResult, Scenario, affine_decode, affine_prefill, simulate
from bidroute.simulator.central import run_central
from bidroute.simulator.host import Host
from bidroute.simulator.layout import D_FREE
from bidroute.simulator.recording import RecordOptions
from tests.simulator.helpers import BlindCycle, Fifo, OneClass, Oracle, ShortestFirst, devices, workload

SECOND_PER_PERIOD = affine_decode(1.0, 0.0, 0.0)


def run(rows: list[tuple[float, int, int]], fleet: tuple[Device, ...], policy: Policy) -> RunResult:
    work = workload(rows)
    return simulate(
        Scenario(work, fleet, SECOND_PER_PERIOD),
        policy,
        Oracle(),
        predicted_tokens=work.output_tokens.astype(np.float64),
    )


def test_invariant_11_shortest_job_first_sums_to_12() -> None:
    rows = [(0.0, 0, 10), (0.0, 0, 1)]
    assert run(rows, devices(1, 1, 100), ShortestFirst()).end_s.sum() == pytest.approx(12)
    assert run(rows, devices(1, 1, 100), Fifo()).end_s.sum() == pytest.approx(21)


@pytest.mark.parametrize(("prompt", "ends"), [(3, [3, 6]), (2, [3, 3])], ids=["peaks of 6", "peaks of 5"])
def test_invariant_11_two_requests_share_kv_10_only_when_both_peaks_fit(prompt: int, ends: list[int]) -> None:
    scenario = Scenario(
        workload([(0.0, prompt, 3)] * 2), devices(1, 2, 10), SECOND_PER_PERIOD, engine=EngineConfig(eviction="reserve")
    )
    assert simulate(scenario, Fifo(), OneClass()).end_s.tolist() == ends


def test_invariant_11_a_request_of_11_is_refused_where_10_fit() -> None:
    result = run([(0.0, 7, 4), (0.0, 7, 3)], devices(1, 2, 10), Fifo())
    assert result.status.tolist() == [Outcome.REFUSED, Outcome.FINISHED]
    assert result.device.tolist() == [-1, 0]
    assert np.isnan(result.end_s[0])


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_what_fills_the_kv_to_its_last_token_runs_and_one_more_is_refused_in_every_mode(mode: str) -> None:
    workers = int(mode == "disaggregated")
    latency, prefill = affine_decode(1.0, 0.0, 0.0), affine_prefill(1.0, 0.0)
    rows = [(0.0, 4, 6), (0.0, 4, 7), (0.0, 9, 1), (0.0, 9, 2)]
    scenario = Scenario(workload(rows), devices(1, 2, 10), latency, prefill, mode, workers)
    result = simulate(scenario, Fifo(), Oracle(), predicted_tokens=np.array([6.0, 7.0, 1.0, 2.0]))
    assert result.status.tolist() == [Outcome.FINISHED, Outcome.REFUSED] * 2


def test_first_token_comes_at_the_end_of_the_first_period() -> None:
    result = run([(0.25, 5, 3)], devices(1, 1, 100), Fifo())
    assert (result.start_s[0], result.first_token_s[0], result.end_s[0]) == (0.25, 1.25, 3.25)


def test_arrivals_at_a_boundary_join_its_pass_and_later_ones_wait_for_the_next() -> None:
    result = run([(0.0, 1, 3), (1.0, 1, 1), (1.5, 1, 1)], devices(1, 4, 100), Fifo())
    assert result.start_s.tolist() == [0.0, 1.0, 2.0]


def test_an_idle_device_takes_what_a_busy_one_cannot() -> None:
    result = run([(0.0, 1, 5), (0.1, 1, 5), (0.2, 1, 1)], devices(2, 1, 100), Fifo())
    assert result.start_s.tolist() == [0.0, 0.1, 5.0]
    assert result.device.tolist()[:2] == [0, 1] or result.device.tolist()[:2] == [1, 0]


class HoldsAll(Policy):
    name = "holds_all"
    timing = Timing.WHEN_STARTABLE

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        return Decision()


class WaitsForFinish(Policy):
    """Releases the second request only after the first has ended elsewhere."""

    name = "waits_for_finish"
    timing = Timing.WHEN_STARTABLE

    def __init__(self) -> None:
        self.ended = False

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        if 0 in state.queue and 0 in devices:
            return Decision([Assignment(0, 0)])
        if self.ended and 1 in devices:
            return Decision([Assignment(1, 1)])
        return Decision()

    def request_finished(self, now_s: float, request_id: int, output_tokens: int) -> None:
        self.ended = True


def test_a_policy_that_holds_for_ever_ends_with_unfinished_requests() -> None:
    result = run([(0.0, 1, 5), (3.0, 1, 5)], devices(2, 1, 100), HoldsAll())
    assert result.status.tolist() == [Outcome.UNFINISHED, Outcome.UNFINISHED]


def test_an_idle_device_is_asked_again_when_another_finishes() -> None:
    result = run([(0.0, 1, 5), (0.0, 1, 2)], devices(2, 1, 100), WaitsForFinish())
    assert result.start_s.tolist() == [0.0, 5.0]


class Overfills(Policy):
    """Sends everything to one device, offered or not."""

    name = "overfills"
    timing = Timing.WHEN_STARTABLE

    def __init__(self, device: int) -> None:
        self.device = device

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        return Decision([Assignment(int(request_id), self.device) for request_id in state.queue.ids])


def test_breaches_of_the_contract_are_named() -> None:
    with pytest.raises(BidrouteError, match="policy overfills overfilled device 0: 3 requests for 2 slots"):
        run([(0.0, 1, 5)] * 3, devices(1, 2, 100), Overfills(0))
    with pytest.raises(BidrouteError, match=r"0 \+ 12 KV tokens for 10"):
        run([(0.0, 5, 2)] * 2, devices(1, 2, 10), Overfills(0))
    with pytest.raises(BidrouteError, match=r"sent request 1 to device 1; it was offered \[0\]"):
        run([(0.0, 1, 9), (1.0, 1, 5)], devices(2, 1, 100), Overfills(1))


def test_a_device_too_small_refuses_what_it_could_never_complete() -> None:
    fleet = (Device("small", 2, 8), Device("large", 2, 100))
    result = run([(0.0, 5, 20)], fleet, Overfills(0))
    assert result.status.tolist() == [Outcome.REFUSED]


jobs = st.lists(
    st.tuples(st.integers(0, 40).map(lambda ms: ms / 1000), st.integers(0, 12), st.integers(1, 25)),
    min_size=1,
    max_size=25,
)


def arrivals(rows: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    times = np.cumsum([gap for gap, _, _ in rows])
    return [(float(t), prompt, output) for t, (_, prompt, output) in zip(times, rows, strict=True)]


@given(
    rows=jobs, slots=st.integers(1, 6), kv_tokens=st.integers(20, 90), eviction=st.sampled_from(["preempt", "reserve"])
)
@settings(max_examples=200, deadline=None)
def test_central_fifo_on_one_device_equals_the_engines_own_fifo(
    rows: list[tuple[float, int, int]], slots: int, kv_tokens: int, eviction: str
) -> None:
    """Preemption and all, in decode mode, where the ledger and the engine count the same tokens."""
    scenario = Scenario(
        workload(arrivals(rows)),
        devices(1, slots, kv_tokens),
        affine_decode(0.004, 1e-3, 1e-5),
        engine=EngineConfig(eviction=eviction, recompute_s_per_token=1e-4),
    )
    central, engine = simulate(scenario, Fifo(), OneClass()), simulate(scenario, BlindCycle(), OneClass())
    for name in ("first_token_s", "end_s", "preemptions", "status"):
        np.testing.assert_array_equal(getattr(central, name), getattr(engine, name), err_msg=name)


@given(rows=jobs, slots=st.integers(1, 6), budget=st.sampled_from([3, 10, 8192]))
@settings(max_examples=60, deadline=None)
def test_central_fifo_on_one_aggregated_device_equals_the_engines_own_fifo(
    rows: list[tuple[float, int, int]], slots: int, budget: int
) -> None:
    scenario = Scenario(
        workload(arrivals(rows)),
        devices(1, slots, 10_000),
        affine_decode(0.004, 1e-3, 1e-5),
        affine_prefill(0.002, 1e-4),
        "aggregated",
        engine=EngineConfig(max_batched_tokens=budget),
    )
    central, engine = simulate(scenario, Fifo(), OneClass()), simulate(scenario, BlindCycle(), OneClass())
    for name in ("first_token_s", "end_s"):
        np.testing.assert_array_equal(getattr(central, name), getattr(engine, name), err_msg=name)


@given(
    rows=jobs, slots=st.integers(1, 4), kv_tokens=st.integers(40, 120), mode=st.sampled_from(["decode", "aggregated"])
)
@settings(max_examples=100, deadline=None)
def test_invariant_8_the_ledger_is_empty_after_a_drain_and_invariant_1_slots_hold(
    rows: list[tuple[float, int, int]], slots: int, kv_tokens: int, mode: str
) -> None:
    scenario = Scenario(
        workload(arrivals(rows)),
        devices(3, slots, kv_tokens),
        affine_decode(0.004, 1e-3, 1e-5),
        affine_prefill(0.002, 1e-4),
        mode,
    )
    host = Host(scenario, Fifo(), OneClass(), None, RecordOptions())
    run_central(host)
    fleet = host.controller.state.fleet
    for totals in (fleet.open_leases, fleet.pending, fleet.kv_tokens_used):
        assert not totals.any()
    assert np.array_equal(host.engines.devices[:, D_FREE], host.engines.total_blocks)
    assert not host.engines.growth.any()
    result = simulate(scenario, Fifo(), OneClass())
    assert result.finished == len(rows)
    if not result.preemptions.any():
        for d in range(3):
            mine = result.device == d
            for now_s in result.start_s[mine]:
                assert np.sum((result.start_s[mine] <= now_s) & (now_s < result.end_s[mine])) <= slots


def test_invariant_10_same_run_bit_for_bit() -> None:
    generator = np.random.default_rng(5)
    lengths = generator.integers(1, 45, (300, 2))
    times = np.cumsum(generator.exponential(0.5, 300))
    rows = [(float(t), int(prompt), int(output)) for t, (prompt, output) in zip(times, lengths, strict=True)]
    one, two = (run(rows, devices(3, 4, 200), Fifo()) for _ in range(2))
    for name in ("start_s", "first_token_s", "end_s", "device", "preemptions"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    assert one.held == two.held
