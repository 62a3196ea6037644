"""No schedule is below a bound: exact optima of small instances, simulated policies, closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.bounds import Problem, lower_bounds, problem_of, quick_bound_s
from bidroute.bounds.dual import Latency, dual_s
from bidroute.bounds.fleet import DeviceKind
from bidroute.bounds.lattice import Lattice
from bidroute.core.devices import Device
from bidroute.errors import ConfigError
from bidroute.lengths import build_predictor, predicted_tokens
from bidroute.policies import PolicySettings, build_policy
from bidroute.pricing.exact_lp import Instance, solve_integer
from bidroute.simulator import (
    Scenario,
    affine_decode,
    parse_decode_latency,
    parse_prefill_latency,
    simulate,
    summary,
)
from bidroute.traces import load_trace
from tests.bounds.brute_force import best_total_s

SEEDS = st.integers(0, 2**32 - 1)


def small_problem(seed: int, requests: int, devices: int) -> Problem:
    random = np.random.default_rng(seed)
    slots, kv_tokens = int(random.integers(1, 4)), int(random.integers(10, 30))
    kinds = [
        DeviceKind(1, base, slot, token, slots, kv_tokens, base + slot * slots + token * kv_tokens)
        for base, slot, token in random.uniform((0.2, 0.0, 0.0), (1.0, 0.3, 0.05), (devices, 3))
    ]
    arrival_s = np.sort(random.uniform(0, 3, requests))
    prompt, output = random.integers(0, 5, requests), random.integers(1, 4, requests)
    return Problem(arrival_s, prompt.astype(float), output.astype(float), kinds)


def random_prices(problem: Problem, seed: int, cells: int = 200) -> tuple[Lattice, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    horizon_s = float(random.uniform(3.0, 30.0))
    lattice = Lattice(cells, horizon_s / cells, problem.fastest_s, problem.slowest_s)
    rho, kappa = random.exponential((3.0, 0.2), (cells, 2)).T if seed % 2 else (np.full(cells, 2.0), np.zeros(cells))
    return lattice, rho * np.linspace(1.0, 0.0, cells), kappa * np.linspace(1.0, 0.0, cells)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(1, 2), st.integers(1, 4))
def test_no_schedule_is_below_the_dual_at_any_prices(seed: int, requests: int, devices: int, block: int) -> None:
    problem = small_problem(seed, requests, devices)
    best_s = {
        Latency.E2E: best_total_s(problem) / requests,
        Latency.TTFT: best_total_s(problem, first_token=True) / requests,
    }
    assert quick_bound_s(problem) <= best_s[Latency.E2E] + 1e-9
    for latency, best in best_s.items():
        for draw in range(4):
            lattice, rho, kappa = random_prices(problem, seed + draw)
            assert dual_s(problem, lattice, block, rho, kappa, latency) <= best + 1e-9


@settings(max_examples=4, deadline=None)
@given(SEEDS, st.integers(2, 3))
def test_no_schedule_is_below_the_bounds_found(seed: int, requests: int) -> None:
    problem = small_problem(seed, requests, 1)
    found = lower_bounds(problem, steps=5)
    assert found.quick_e2e_s <= found.e2e_s <= best_total_s(problem) / requests + 1e-9
    assert found.ttft_s <= best_total_s(problem, first_token=True) / requests + 1e-9


@settings(max_examples=4, deadline=None)
@given(SEEDS, st.integers(1, 2))
def test_the_best_integer_schedule_is_not_below_the_bound(seed: int, devices: int) -> None:
    """With a period of one second whatever the load, the exact linear program in whole requests is the optimum."""
    random = np.random.default_rng(seed)
    arrival = np.sort(random.integers(0, 4, 6))
    prompt, output = random.integers(0, 5, 6), random.integers(1, 6, 6)
    periods = int(arrival.max() + output.sum())
    latency_s = np.maximum(np.arange(periods)[None, :] + (output - arrival)[:, None], 0)
    enough = 100.0
    reward = np.repeat((enough - latency_s)[:, None, :], devices, axis=1)
    slots, kv_tokens = np.full(devices, 2), np.full(devices, 14)
    best = 6 * enough - solve_integer(Instance(arrival, prompt, output, reward, slots, kv_tokens)).value
    kind = DeviceKind(devices, 1.0, 0.0, 0.0, 2, 14, 1.0)
    problem = Problem(arrival.astype(float), prompt.astype(float), output.astype(float), [kind])
    assert lower_bounds(problem, steps=5).e2e_s <= best / 6 + 1e-6


def scenario(latency: str = "affine:0.006,5e-05,5.086e-08", kv_tokens: int = 9000) -> Scenario:
    workload = load_trace("builtin:azure-conv-like", requests=150, seed=3).sped_up(6.0)
    devices = Device("a", 16, kv_tokens), Device("b", 8, kv_tokens + 3000)
    return Scenario(workload, devices, parse_decode_latency(latency))


@pytest.mark.parametrize("latency", ["affine:0.006,5e-05,5.086e-08", "llama-3.1-8b-h100"])
def test_no_policy_is_below_the_bound(latency: str) -> None:
    tight = scenario(latency)
    found = lower_bounds(problem_of(tight), steps=15)
    assert found.ttft_s > 0
    for name in ("join_shortest_queue", "fifo", "least_footprint+safety"):
        run = simulate(
            tight,
            build_policy(name, PolicySettings(objective="latency")),
            build_predictor("oracle"),
            predicted_tokens=predicted_tokens("oracle", tight.workload.output_tokens, 0),
        )
        figures = summary(run)
        assert figures["refused"] == 0
        assert found.e2e_s <= figures["e2e_s"]["mean"]
        if figures["preemptions"] == 0:
            assert found.ttft_s <= figures["ttft_s"]["mean"]


def test_one_request_alone_takes_its_least_duration() -> None:
    kind = DeviceKind(1, 0.5, 0.25, 0.0, 4, 100, 1.5)
    problem = Problem(np.zeros(1), np.array([3.0]), np.array([8.0]), [kind])
    found = lower_bounds(problem, steps=1)
    assert found.e2e_s == pytest.approx(6.0)
    assert found.ttft_s == pytest.approx(0.75)


def test_progress_is_told_in_order() -> None:
    seen: list[tuple[int, int]] = []
    lower_bounds(small_problem(1, 3, 1), 3, lambda done, total, _: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_other_modes_are_refused() -> None:
    tight = scenario()
    other = Scenario(
        tight.workload, tight.devices, tight.latency, parse_prefill_latency("affine:0.005,4e-05"), mode="aggregated"
    )
    with pytest.raises(ConfigError, match="mode aggregated; bounds are known for mode decode only"):
        problem_of(other)


def test_iterations_that_take_no_time_are_refused() -> None:
    free = Scenario(scenario().workload, (Device("a", 4, 50_000),), affine_decode(0.0, 1e-3, 0.0))
    with pytest.raises(ConfigError, match="expected A above 0"):
        problem_of(free)


def test_where_full_batches_are_slow_the_priced_bound_is_well_above_the_quick_one() -> None:
    """One device at its capacity with slots for 64: its iterations take 9 ms when full, 6 ms when empty."""
    workload = load_trace("builtin:azure-conv-like", requests=120, seed=0).sped_up(5.0)
    device = Device("a", 64, 100_000)
    found = lower_bounds(problem_of(Scenario(workload, (device,), affine_decode(0.006, 5e-5, 5.086e-8))), steps=60)
    assert found.e2e_s > 1.3 * found.quick_e2e_s
