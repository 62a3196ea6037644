"""No schedule earns more than the bound on reward: exact optima of small instances, policies, closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.bounds import Problem, Worth, problem_of, reward_bound
from bidroute.bounds.fleet import DeviceKind
from bidroute.bounds.lattice import Lattice
from bidroute.bounds.reward import reward_dual
from bidroute.bounds.reward_kernels import worth_at
from bidroute.core.devices import Device
from bidroute.core.objective import PRESETS, Objective
from bidroute.lengths import build_predictor, predicted_tokens
from bidroute.policies import PolicySettings, build_policy
from bidroute.pricing.exact_lp import Instance, solve_integer
from bidroute.simulator import RunResult, Scenario, affine_decode, simulate
from bidroute.traces import load_trace
from tests.bounds.brute_force import best_total_s
from tests.bounds.test_lower import SEEDS, random_prices, small_problem
from tests.invariants.runs import random_jobs, workload

SHAPES = {
    "latency": Objective(throughput=0.0, latency=2.0),
    "beta": Objective(throughput=0.5, beta=0.1, horizon_s=9.0),
    "alpha": Objective(throughput=1.0, alpha=100.0),
}
FIRST_TOKEN = {"ttft": Objective(throughput=0.0, ttft=1.0), "mixed": Objective(throughput=1.0, ttft=3.0)}


def random_objective(seed: int) -> Objective:
    """Any mix of terms."""
    random = np.random.default_rng(seed)
    names = ("throughput", "latency", "ttft", "goodput", "sigma", "alpha", "beta", "gamma", "tail")
    weights = random.exponential(1.0, len(names)) * random.integers(0, 2, len(names)) + 1e-3
    return Objective(**dict(zip(names, weights.tolist(), strict=True)), horizon_s=20.0)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.sampled_from([*SHAPES, *FIRST_TOKEN]))
def test_no_schedule_earns_more_than_the_dual_at_any_prices(
    seed: int, requests: int, devices: int, block: int, shape: str
) -> None:
    """Against all schedules on devices whose pace depends on their load."""
    problem, objective = small_problem(seed, requests, devices), (SHAPES | FIRST_TOKEN)[shape]

    def cost_of(request: int, latency_s: float) -> float:
        at = np.array([latency_s])  # only one of the two times matters to each of these objectives
        return -float(objective.worth(at, at, at, problem.output_tokens[[request]], np.ones(1, dtype=bool))[0])

    best = -best_total_s(problem, first_token=shape in FIRST_TOKEN, cost_of=cost_of)
    worth = Worth.of(problem, objective)
    for draw in range(4):
        lattice, rho, kappa = random_prices(problem, seed + draw)
        assert reward_dual(problem, worth, lattice, block, 0.1 * rho, 0.1 * kappa) >= best - 1e-9


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 2))
def test_the_best_integer_schedule_earns_no_more(seed: int, devices: int) -> None:
    """With a period of one second whatever the load, the exact linear program in whole requests is the optimum."""
    random, objective = np.random.default_rng(seed), random_objective(seed)
    arrival = np.sort(random.integers(0, 4, 6))
    prompt, output = random.integers(0, 5, 6), random.integers(1, 6, 6)
    periods = int(arrival.max() + output.sum())
    waits_s = np.maximum(np.arange(periods)[None, :] - arrival[:, None], 0).astype(float)
    ttft_slo_s, e2e_slo_s = 3.0, 6.0
    in_time = (waits_s + 1.0 <= ttft_slo_s) & (waits_s + output[:, None] <= e2e_slo_s)
    reward = objective.worth(waits_s, waits_s + 1.0, waits_s + output[:, None], output[:, None].astype(float), in_time)
    slots, kv_tokens = np.full(devices, 2), np.full(devices, 14)
    shared = np.repeat(reward[:, None, :], devices, axis=1)
    best = solve_integer(Instance(arrival, prompt, output, shared, slots, kv_tokens)).value
    kind = DeviceKind(devices, 1.0, 0.0, 0.0, 2, 14, 1.0)
    problem = Problem(arrival.astype(float), prompt.astype(float), output.astype(float), [kind])
    worth = Worth.of(problem, objective, ttft_slo_s, e2e_slo_s)
    assert reward_bound(problem, worth, steps=5) * 6 >= best - 1e-6
    lattice = Lattice(120, 0.25, 1.0, 1.0)
    prices = random.exponential(1.0, (2, 120)) * np.array([[0.5], [0.05]])
    assert reward_dual(problem, worth, lattice, 2, *prices) >= best - 1e-6


def earned(result: RunResult, objective: Objective, scenario: Scenario) -> float:
    """Mean worth of the requests of a run."""
    waits_s, ttft_s, e2e_s = (
        times - result.arrival_s for times in (result.start_s, result.first_token_s, result.end_s)
    )
    in_time = (ttft_s <= scenario.ttft_slo_s) & (e2e_s <= scenario.e2e_slo_s)
    return float(objective.worth(waits_s, ttft_s, e2e_s, result.output_tokens.astype(float), in_time).mean())


POLICIES = ("fifo+safety", "least_footprint+safety", "shortest_first+safety", "bid_price", "join_shortest_queue")


@settings(max_examples=5, deadline=None)
@given(SEEDS, st.sampled_from(POLICIES), st.integers(1, 4), st.integers(30, 90))
def test_no_policy_earns_more(seed: int, name: str, slots: int, kv_tokens: int) -> None:
    objective = random_objective(seed)
    trace = workload(random_jobs(seed, 20, span_s=10, longest=20, prompt=8))
    devices = tuple(Device(f"d{g}", slots + g, kv_tokens, period_s=0.5) for g in range(2))
    scenario = Scenario(trace, devices, affine_decode(0.3, 0.05, 0.002), ttft_slo_s=5.0, e2e_slo_s=15.0)
    policy = build_policy(name)
    hints = predicted_tokens("oracle", trace.output_tokens, 0)
    result = simulate(scenario, policy, build_predictor("oracle"), predicted_tokens=hints)
    problem = problem_of(scenario)
    worth = Worth.of(problem, objective, scenario.ttft_slo_s, scenario.e2e_slo_s)
    preempted = (result.preemptions > 0).mean() * worth.after(0.0).max()  # any of these may be worth as much
    assert reward_bound(problem, worth, steps=2) + preempted >= earned(result, objective, scenario)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_policy_earns_more_on_a_trace_under_any_preset(preset: str) -> None:
    trace = load_trace("builtin:azure-conv-like", requests=80, seed=3).sped_up(6.0)
    devices = Device("a", 16, 9000), Device("b", 8, 12_000)
    scenario = Scenario(trace, devices, affine_decode(0.006, 5e-5, 5.086e-8), ttft_slo_s=2.0, e2e_slo_s=30.0)
    policy = build_policy("bid_price", PolicySettings(objective=preset))
    hints = predicted_tokens("oracle", trace.output_tokens, 0)
    result = simulate(scenario, policy, build_predictor("oracle"), predicted_tokens=hints)
    assert result.preemptions.sum() == 0
    problem = problem_of(scenario)
    worth = Worth.of(problem, PRESETS[preset], scenario.ttft_slo_s, scenario.e2e_slo_s)
    assert reward_bound(problem, worth, steps=3) >= earned(result, PRESETS[preset], scenario)


def test_one_request_alone_earns_all_that_it_can() -> None:
    kind = DeviceKind(1, 0.5, 0.25, 0.0, 4, 100, 1.5)
    problem = Problem(np.zeros(1), np.array([3.0]), np.array([8.0]), [kind])
    worth = Worth.of(problem, Objective(throughput=1.0, latency=7.0, ttft=1.75))
    assert reward_bound(problem, worth, steps=1) == pytest.approx(1.0 + 7.0 / 7.0 + 1.75 / 1.75)


def test_where_all_cannot_be_served_at_once_it_says_so() -> None:
    """One slot and ten requests of ten seconds that arrive together: they start 0, 10, 20 … seconds later."""
    kind = DeviceKind(1, 1.0, 0.0, 0.0, 1, 100, 1.0)
    problem = Problem(np.zeros(10), np.zeros(10), np.full(10, 10.0), [kind])
    objective = Objective(throughput=0.0, beta=1.0, horizon_s=100.0)
    exact = np.mean([90.0 - 10.0 * k for k in range(10)])
    found = reward_bound(problem, Worth.of(problem, objective), steps=80)
    assert exact <= found <= 1.15 * exact


@given(SEEDS)
def test_the_kernel_values_a_start_as_the_objective_does(seed: int) -> None:
    problem, random = small_problem(seed, 3, 1), np.random.default_rng(seed)
    worth = Worth.of(problem, random_objective(seed), *random.uniform(0.0, 10.0, 2))
    wait_s = float(random.uniform(0.0, 20.0))
    by_kernel = [worth_at(worth.weights, wait_s, worth.first_s, *need) for need in worth.needs.T]
    assert by_kernel == pytest.approx(worth.after(wait_s))
    assert np.all(worth.after(wait_s + 1.0) <= worth.after(wait_s) + 1e-12)
