"""Invariants on devices that run both phases: chunked prefill under a token budget per iteration (docs/mixed.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.objective import Objective
from bidroute.core.requests import Request
from bidroute.lengths import OneClass, build_predictor, predicted_tokens
from bidroute.policies import Controller
from bidroute.policies.base import Hold, Policy
from bidroute.policies.bid_price import BidPrice
from bidroute.pricing.exact_lp import Instance, dual_value, solve_integer, solve_lp
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import Sample, ShadowPrices
from bidroute.simulator import EngineConfig, RunResult, Scenario, affine_decode, affine_prefill, simulate
from tests.invariants.runs import Job, random_jobs, same, workload

SLOTS, KV_TOKENS = 4, 150
DECAY = 10.0
LENGTHS = ["oracle", "noisy:0.6", "none"]
CONGESTED = random_jobs(5, 120, span_s=100, longest=40, prompt=60)


def run(
    jobs: list[Job],
    slots: int = SLOTS,
    kv_tokens: int = KV_TOKENS,
    budget: int = 24,
    *,
    devices: int = 1,
    lengths: str = "oracle",
    policy: Policy | None = None,
    block_size: int = 1,
) -> RunResult:
    """Run the jobs on aggregated devices, whose iterations take longer with prompts in them."""
    trace = workload(jobs)
    fleet = tuple(Device(f"d{g}", slots, kv_tokens, period_s=1.0, token_budget=budget) for g in range(devices))
    scenario = Scenario(
        trace,
        fleet,
        affine_decode(1.0, 0.0, 0.0),
        affine_prefill(0.5, 0.01),
        mode="aggregated",
        engine=EngineConfig(block_size=block_size),
    )
    return simulate(
        scenario,
        policy or BidPrice(Objective()),
        build_predictor(lengths),
        predicted_tokens=predicted_tokens(lengths, trace.output_tokens, 1),
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(30, 90),
    st.integers(8, 40),
    st.integers(1, 3),
    st.sampled_from([1, 4]),
)
def test_invariant_1_mixed_known_lengths_never_preempt(
    seed: int, slots: int, kv_tokens: int, budget: int, devices: int, block_size: int
) -> None:
    """Also where prompts take several iterations, beside others that decode: the engine is never asked for more."""
    jobs = random_jobs(seed, 25, span_s=30, longest=15, prompt=30)
    policy = BidPrice(Objective(), risk_z=0.0)
    result = run(jobs, slots, kv_tokens, budget, devices=devices, policy=policy, block_size=block_size)
    assert result.preemptions.sum() == 0
    fits = result.prompt_tokens + result.output_tokens <= kv_tokens // block_size * block_size
    assert result.finished == np.count_nonzero(fits)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_invariant_1_mixed_who_is_released_starts_in_that_iteration(lengths: str) -> None:
    """Nobody waits inside an engine for room in the budget: it is the router's choice until the last moment."""
    released: dict[int, float] = {}
    policy = BidPrice(Objective())
    decide = policy.decide

    def watched(now_s, state, devices):  # type: ignore[no-untyped-def]
        decision = decide(now_s, state, devices)
        released.update({assignment.request_id: now_s for assignment in decision.assignments})
        return decision

    policy.decide = watched  # type: ignore[method-assign]
    result = run(CONGESTED, budget=40, devices=2, lengths=lengths, policy=policy)
    assert result.finished == 120
    never_out = result.preemptions == 0
    at = np.array([released[i] for i in range(120)])
    np.testing.assert_allclose(result.start_s[never_out], at[never_out], atol=1e-6)
    assert result.held[Hold.TOKENS] > 0


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("exponent", [-20, 30])
def test_invariant_4_mixed_scaling_all_rewards_changes_nothing(lengths: str, exponent: int) -> None:
    scaled = BidPrice(Objective(ttft=1.0).scaled(2.0**exponent))
    plain = run(CONGESTED, devices=2, lengths=lengths, policy=BidPrice(Objective(ttft=1.0)))
    assert same(plain, run(CONGESTED, devices=2, lengths=lengths, policy=scaled))


def permuted(seed: int, places: list[int]) -> dict[int, int]:
    """Request → label of its device, of a decision on three devices alike, where label g stands at `places[g]`."""
    random, policy = np.random.default_rng(seed), BidPrice(Objective())
    controller = Controller(policy, [Device("d", 8, 20_000, period_s=1.0, token_budget=100)] * 3, OneClass())
    prices, fleet = policy.shadow_prices, controller.state.fleet
    prices.fit_fleet(3)
    for price in (prices.slot_price, prices.kv_price, prices.token_price):
        price[places] = random.exponential(1e-4, price.shape)
    for i in range(100, 106):  # 1, 2 and 3 of them: no two devices tie
        device = places[0 if i == 100 else 1 if i < 103 else 2]
        fleet.open(Request(i, 0.0, int(random.integers(0, 60))), device, 0)
        fleet.start(i, prefilled=bool(random.integers(2)))
    for i in range(12):
        controller.enqueue(10.0, Request(i, float(random.integers(0, 10)), int(random.integers(0, 60))))
    decision = policy.decide(20.0, controller.state, [0, 1, 2])
    return {assignment.request_id: places.index(assignment.device) for assignment in decision.assignments}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.permutations([0, 1, 2]))
def test_invariant_6_mixed_permuting_identical_devices_permutes_the_assignments(seed: int, places: list[int]) -> None:
    assert permuted(seed, places) == permuted(seed, [0, 1, 2])


@pytest.mark.parametrize("lengths", ["oracle", "none"])
@pytest.mark.parametrize("budget", [2, 8, 64])
def test_invariant_9_mixed_everybody_is_served_under_overload(lengths: str, budget: int) -> None:
    """Also where the budget is less than the slots, and prompts take dozens of iterations."""
    jobs = random_jobs(1, 80, span_s=60, longest=40, prompt=60)
    assert run(jobs, 3, 120, budget, lengths=lengths).finished == 80


def test_invariant_9_mixed_a_stream_of_short_prompts_does_not_starve_a_long_one() -> None:
    """The short ones alone use up the budget of every iteration."""
    short = [(float(second), 20, 5) for second in range(600)]
    jobs = sorted([*short, (5.0, 300, 20)])
    result = run(jobs, 8, 500, 24, policy=BidPrice(Objective(threshold_s=30.0)))
    assert result.finished == len(jobs)
    long = int(np.argmax(result.prompt_tokens))
    assert result.start_s[long] - result.arrival_s[long] < 300.0


def test_a_budget_that_is_not_known_is_not_used() -> None:
    """Nor priced, nor does it hold anybody."""
    policy = BidPrice(Objective())
    trace = workload(CONGESTED)
    scenario = Scenario(
        trace,
        (Device("d", SLOTS, KV_TOKENS, period_s=1.0),),
        affine_decode(1.0, 0.0, 0.0),
        affine_prefill(0.5, 0.01),
        mode="aggregated",
        engine=EngineConfig(max_batched_tokens=24),
    )
    result = simulate(scenario, policy, build_predictor("none"))
    assert result.finished == 120
    assert Hold.TOKENS not in result.held
    assert policy.prices().token_price.max() == 0.0


# --- invariant 2, with the third row --------------------------------------------------------------------------------


def instance(jobs: list[Job], budget: int, chunk: int, periods: int, slots: int = 3, kv_tokens: int = 40) -> Instance:
    arrival, prompt, output = (np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True))
    worth = (1.0 + 0.1 * prompt)[:, None, None] * np.ones((1, 1, periods))
    one = np.ones(1, dtype=np.int64)
    return Instance(arrival, prompt, output, worth, slots * one, kv_tokens * one, budget * one, chunk * one)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(4, 12))
def test_invariant_2_mixed_dual_lp_integer_in_this_order(seed: int, budget: int) -> None:
    small = instance(random_jobs(seed, 7, span_s=6, longest=6, prompt=10), budget, max(budget - 3, 1), 24)
    relaxed, best = solve_lp(small), solve_integer(small)
    assert best.value <= relaxed.value + 1e-6
    random = np.random.default_rng(seed)
    for scale in (0.0, 0.1, 1.0):
        prices = scale * random.exponential(1.0, (3, 1, 24)) / 40
        assert dual_value(small, *prices) >= relaxed.value - 1e-6
    assert dual_value(small, relaxed.slot_price, relaxed.kv_price, relaxed.token_price) == pytest.approx(relaxed.value)


def decaying(small: Instance) -> Instance:
    """What its requests are worth falls with their completion, so that they compete for the first periods."""
    delay = np.array([small.delay(j, 0) for j in range(len(small.output_tokens))])
    completion = np.arange(small.periods)[None, :] + (small.output_tokens + delay)[:, None]
    return replace(small, reward=small.reward * (DECAY / (DECAY + completion))[:, None, :])


def first_order(small: Instance, worth: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
    """The dual at the mean of the last half of the prices of `steps` steps, and the token prices among them."""
    n, periods = len(small.arrival_period), small.periods
    budget = int(small.token_budget[0])
    fleet = Fleet([Device("d", int(small.batch_slots[0]), int(small.kv_tokens[0]), period_s=1.0, token_budget=budget)])
    model, prices = LengthModel(1, 2), ShadowPrices(TimeGrid.uniform(periods, periods))
    one, nobody = np.arange(1), np.zeros(n, dtype=np.int64)
    prices.refresh_capacity(fleet, model, one)
    sample = Sample(small.prompt_tokens, nobody, small.output_tokens, worth, np.ones(n), nobody)
    mean = np.zeros((3, 1, periods))
    for step in range(steps):
        scale = prices.price_scale(fleet, model, sample, one) / np.sqrt(1.0 + step)
        prices.step(fleet, model, sample, one, DECAY, scale)
        if step >= steps // 2:
            mean += np.stack([prices.slot_price, prices.kv_price, prices.token_price]) / (steps - steps // 2)
    per_unit = [price / most[:, None] for price, most in zip(mean, small.capacities, strict=True)]
    return dual_value(small, *per_unit), mean[2]


def test_invariant_12_mixed_first_order_prices_approach_those_of_the_exact_program() -> None:
    """Where the budget binds: slots and KV for all, prompts of 10 to 40 tokens and 12 tokens per iteration."""
    gaps = {}
    for seed in range(4):
        random = np.random.default_rng(seed)
        jobs = [(0.0, int(random.integers(10, 40)), int(random.integers(1, 6))) for _ in range(12)]
        plain = instance(jobs, 12, 12, 60, slots=50, kv_tokens=5000)
        small = decaying(plain)
        optimum = solve_lp(small)
        assert optimum.token_price.max() > 0.0
        assert optimum.slot_price.max() == optimum.kv_price.max() == 0.0
        for steps in (4, 40, 400):
            value, token_price = first_order(small, plain.reward[:, 0, 0], steps)
            gaps.setdefault(steps, []).append(value / optimum.value - 1.0)
        assert token_price.max() > 0.0
    assert all(gap >= -1e-9 for values in gaps.values() for gap in values)
    assert np.mean(gaps[4]) > np.mean(gaps[40]) > np.mean(gaps[400])
    assert np.mean(gaps[400]) < 0.05
