"""Invariants 4, 5, 6, 7 and 10: what a decision does not depend on, and what it does."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.core.requests import Request
from bidroute.lengths import OneClass
from bidroute.policies import Controller
from bidroute.policies.bid_price import BidPrice
from tests.invariants.runs import random_jobs, run, same

LENGTHS = ["oracle", "noisy:0.6", "none"]
CONGESTED = random_jobs(5, 150, span_s=100, longest=40, prompt=30)

EVERY_TERM = Objective(
    throughput=1.0, latency=2.0, ttft=3.0, tail=5.0, goodput=0.5, sigma=0.25, alpha=1.0, beta=0.125, gamma=0.125
)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("exponent", [-20, 1, 30])
def test_invariant_4_scaling_all_rewards_changes_nothing(lengths: str, exponent: int) -> None:
    """By powers of two, so that the runs are equal to the last bit, not only as decisions."""
    for objective in (Objective(), EVERY_TERM):
        scaled = BidPrice(objective.scaled(2.0**exponent))
        plain = run(CONGESTED, 4, 150, devices=2, lengths=lengths, policy=BidPrice(objective))
        assert same(plain, run(CONGESTED, 4, 150, devices=2, lengths=lengths, policy=scaled))


def test_invariant_4_scaling_by_any_constant_changes_nothing() -> None:
    plain = run(CONGESTED, 4, 150, policy=BidPrice(EVERY_TERM))
    assert same(plain, run(CONGESTED, 4, 150, policy=BidPrice(EVERY_TERM.scaled(1000.0))))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_invariant_5_an_hour_later_everything_is_the_same(lengths: str) -> None:
    later = [(arrival_s + 3600.0, prompt, output) for arrival_s, prompt, output in CONGESTED]
    assert same(run(CONGESTED, 4, 150, devices=2, lengths=lengths), run(later, 4, 150, devices=2, lengths=lengths))


def permuted(seed: int, places: list[int]) -> dict[int, int]:
    """Request → label of its device, of a decision on three devices alike, where label g stands at `places[g]`."""
    random, policy = np.random.default_rng(seed), BidPrice(Objective())
    controller = Controller(policy, [Device("d", 8, 20_000, period_s=1.0)] * 3, OneClass())
    prices = random.exponential(1e-4, (2, 3, policy.shadow_prices.grid.buckets))
    policy.shadow_prices.fit_fleet(3)
    policy.shadow_prices.slot_price[places], policy.shadow_prices.kv_price[places] = prices
    fleet, next_id = controller.state.fleet, 100
    for label in range(3):
        for _ in range(label + 1):  # a different number on each: no two devices tie
            request = Request(next_id, 0.0, int(random.integers(0, 60)))
            fleet.open(request, places[label], 0)
            fleet.start(next_id, prefilled=True)
            fleet.progress(next_id, int(random.integers(0, 40)))
            next_id += 1
    for i in range(12):
        controller.enqueue(10.0, Request(i, float(random.integers(0, 10)), int(random.integers(0, 60))))
    decision = policy.decide(20.0, controller.state, [0, 1, 2])
    return {assignment.request_id: places.index(assignment.device) for assignment in decision.assignments}


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.permutations([0, 1, 2]))
def test_invariant_6_permuting_identical_devices_permutes_the_assignments(seed: int, places: list[int]) -> None:
    """Devices alike with different batches and prices; where both are equal too, the lower index goes first."""
    assert permuted(seed, places) == permuted(seed, [0, 1, 2])


def test_invariant_6_it_is_about_something() -> None:
    assert len(set(permuted(1, [0, 1, 2]).values())) > 1


@pytest.mark.parametrize("weight", ["latency", "ttft", "tail", "sigma", "alpha", "beta", "gamma"])
def test_invariant_7_every_weight_changes_some_decision(weight: str) -> None:
    """On a fixed trace; a threshold in seconds keeps everything but the weight the same."""
    plain = Objective(threshold_s=20.0)
    changed = replace(plain, **{weight: 10.0 * getattr(plain, weight) + 10.0})
    assert not same(run(CONGESTED, 4, 150, policy=BidPrice(plain)), run(CONGESTED, 4, 150, policy=BidPrice(changed)))


@pytest.mark.parametrize("field", ["threshold_s", "patience", "horizon_s"])
def test_invariant_7_so_do_the_times_they_refer_to(field: str) -> None:
    plain = Objective(beta=1.0)
    changed = replace(plain, **{field: 5.0 * getattr(plain, field) + 1.0})
    assert not same(run(CONGESTED, 4, 150, policy=BidPrice(plain)), run(CONGESTED, 4, 150, policy=BidPrice(changed)))


def first_released(objective: Objective, *requests: Request) -> int:
    """Who gets the only slot, at 10 s."""
    policy = BidPrice(replace(objective, threshold_s=1000.0))
    controller = Controller(policy, [Device("d", 1, 10_000, period_s=0.02)], OneClass())
    for request in requests:
        controller.enqueue(request.arrival_s, request)
    return policy.decide(10.0, controller.state, [0]).assignments[0].request_id


def test_invariant_7_goodput_puts_who_can_still_meet_its_slo_first() -> None:
    missed, meets = Request(0, 0.0, 10, ttft_slo_s=5.0), Request(1, 0.0, 20, ttft_slo_s=50.0)
    assert first_released(Objective(tail=0.0), missed, meets) == 0  # the smaller one
    assert first_released(Objective(tail=0.0, goodput=5.0), missed, meets) == 1


def test_invariant_7_priority_goes_first() -> None:
    small, urgent = Request(0, 0.0, 10), Request(1, 0.0, 20, priority=3.0)
    assert first_released(Objective(), small, urgent) == 1


@pytest.mark.parametrize("lengths", LENGTHS)
def test_invariant_10_the_same_seed_gives_the_same_run(lengths: str) -> None:
    results = [run(CONGESTED, 4, 150, devices=2, lengths=lengths, policy=BidPrice(Objective(), 7)) for _ in range(2)]
    assert same(*results)
    assert results[0].held == results[1].held


def test_invariant_10_the_same_in_every_process() -> None:
    program = (
        "from tests.invariants.test_symmetry import CONGESTED, BidPrice, Objective, run\n"
        "result = run(CONGESTED, 4, 150, devices=2, lengths='none', policy=BidPrice(Objective(), 7))\n"
        "print(result.start_s.tobytes().hex(), result.device.tolist(), result.held)"
    )
    outputs = []
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000
