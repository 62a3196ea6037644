"""Invariants 2 and 12: the prices against the exact linear program."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.objective import Objective
from bidroute.policies import build_policy
from bidroute.policies.base import Policy
from bidroute.policies.bid_price import BidPrice
from bidroute.pricing.exact_lp import Instance, dual_value, is_feasible, solve_integer, solve_lp
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import PriceSnapshot, Sample, ShadowPrices
from bidroute.simulator import RunResult
from tests.invariants.runs import Job, random_jobs, run

DECAY = 10.0


def instance(jobs: list[Job], slots: int, kv_tokens: int, devices: int, periods: int) -> Instance:
    """A request is worth its size at once, and less the later it completes."""
    arrival, prompt, output = (np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True))
    completion = np.arange(periods)[None, :] + (output - arrival)[:, None]
    worth = (1.0 + 0.1 * prompt)[:, None] * DECAY / (DECAY + np.maximum(completion, 0))
    reward = np.repeat(worth[:, None, :], devices, axis=1)
    return Instance(arrival, prompt, output, reward, np.full(devices, slots), np.full(devices, kv_tokens))


def schedule(result: RunResult, small: Instance) -> np.ndarray:
    starts = np.zeros(small.reward.shape)
    for j in np.flatnonzero(result.status == 0):
        starts[j, result.device[j], int(result.start_s[j])] = 1.0
    return starts


def per_period(snapshot: PriceSnapshot, small: Instance) -> tuple[np.ndarray, np.ndarray]:
    """Prices of one slot and of one token in each period."""
    last = len(snapshot.edges_periods) - 2
    bucket = np.minimum(np.searchsorted(snapshot.edges_periods, np.arange(small.periods), side="right") - 1, last)
    slot_price = snapshot.slot_price[:, bucket] / small.batch_slots[:, None]
    return slot_price, snapshot.kv_price[:, bucket] / small.kv_tokens[:, None]


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(12, 30), st.integers(1, 2))
def test_invariant_2_dual_lp_integer_and_policies_in_this_order(
    seed: int, slots: int, kv_tokens: int, devices: int
) -> None:
    jobs = random_jobs(seed, 8, span_s=6, longest=8, prompt=4)
    bid_price = BidPrice(Objective(), risk_z=0.0)
    policies: list[Policy] = [bid_price, build_policy("fifo+safety"), build_policy("least_footprint+safety")]
    results = [run(jobs, slots, kv_tokens, devices=devices, policy=policy) for policy in policies]
    periods = int(max(np.nanmax(result.end_s) for result in results))
    small = instance(jobs, slots, kv_tokens, devices, periods)
    relaxed, best = solve_lp(small), solve_integer(small)
    assert best.value <= relaxed.value + 1e-6
    for result in results:
        starts = schedule(result, small)
        assert result.preemptions.sum() == 0
        assert is_feasible(small, starts)
        assert (starts * small.reward).sum() <= best.value + 1e-6
    random = np.random.default_rng(seed)
    for scale in (0.0, 0.1, 1.0):
        prices = scale * random.exponential(1.0, (2, devices, periods)) / kv_tokens
        assert dual_value(small, prices[0], prices[1]) >= relaxed.value - 1e-6
    assert dual_value(small, *per_period(bid_price.prices(), small)) >= relaxed.value - 1e-6
    assert dual_value(small, relaxed.slot_price, relaxed.kv_price) == pytest.approx(relaxed.value)


def first_order(small: Instance, steps: int, draws: int, seed: int) -> float:
    """The dual at the mean of the last half of the prices that `steps` steps with `draws` samples pass through."""
    random = np.random.default_rng(seed)
    n, devices = small.reward.shape[:2]
    fleet = Fleet(
        [Device(f"d{g}", int(small.batch_slots[g]), int(small.kv_tokens[g]), period_s=1.0) for g in range(devices)]
    )
    model, prices = LengthModel(1, 2), ShadowPrices(TimeGrid.uniform(small.periods, small.periods))
    everyone = np.arange(devices)
    prices.refresh_capacity(fleet, model, everyone)
    worth = small.reward[:, 0, 0] * (DECAY + small.output_tokens) / DECAY
    mean = np.zeros((2, devices, small.periods))
    for step in range(steps):
        chosen = random.permutation(n)[:draws]
        sample = Sample(
            small.prompt_tokens[chosen],
            np.zeros(draws, dtype=np.int64),
            small.output_tokens[chosen],
            worth[chosen],
            np.full(draws, n / draws),
            np.zeros(draws, dtype=np.int64),
        )
        scale = prices.price_scale(fleet, model, sample, everyone) / np.sqrt(1.0 + step)
        prices.step(fleet, model, sample, everyone, DECAY, scale)
        if step >= steps // 2:
            mean += np.stack([prices.slot_price, prices.kv_price]) / (steps - steps // 2)
    snapshot = PriceSnapshot(prices.grid.edges_periods, mean[0], mean[1])
    return dual_value(small, *per_period(snapshot, small))


def test_invariant_12_the_gap_to_the_exact_prices_shrinks_with_steps_and_samples() -> None:
    gaps = {}
    for seed in range(5):
        jobs = random_jobs(seed, 24, span_s=1, longest=10, prompt=4, together=True)
        small = instance(jobs, 2, 24, 1, 60)
        optimum = solve_lp(small).value
        for steps, draws in ((4, 24), (40, 24), (400, 24), (400, 3)):
            gaps.setdefault((steps, draws), []).append(first_order(small, steps, draws, seed) / optimum - 1.0)
    mean = {which: float(np.mean(values)) for which, values in gaps.items()}
    assert all(gap >= -1e-9 for values in gaps.values() for gap in values)
    assert mean[4, 24] > mean[40, 24] > mean[400, 24]
    assert mean[400, 3] > mean[400, 24]
    assert mean[400, 24] < 0.05
