"""Invariant 1: no device ever holds more than it can, and with known lengths nobody is ever thrown out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.objective import Objective
from bidroute.policies.bid_price import BidPrice
from bidroute.simulator import EngineConfig, Outcome, RunResult
from tests.invariants.runs import random_jobs, run


def occupancy(result: RunResult, block_size: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Requests and KV tokens (in whole blocks) per device and period, int64[G, K], of a run without preemptions."""
    finished = np.flatnonzero(~np.isnan(result.end_s))
    shape = int(result.device.max()) + 1, int(result.end_s[finished].max())
    active, tokens = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i in finished:
        periods = np.arange(int(result.start_s[i]), int(result.end_s[i]))
        held = result.prompt_tokens[i] + 1 + np.arange(len(periods))
        active[result.device[i], periods] += 1
        tokens[result.device[i], periods] += -(-held // block_size) * block_size
    return active, tokens


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(20, 60), st.integers(1, 3), st.sampled_from([1, 4]))
def test_invariant_1_known_lengths_never_exceed_capacity_nor_preempt(
    seed: int, slots: int, kv_tokens: int, devices: int, block_size: int
) -> None:
    jobs = random_jobs(seed, 25, span_s=30, longest=15, prompt=10)
    policy = BidPrice(Objective(), risk_z=0.0)
    result = run(jobs, slots, kv_tokens, devices=devices, policy=policy, engine=EngineConfig(block_size=block_size))
    assert result.preemptions.sum() == 0
    active, tokens = occupancy(result, block_size)
    assert active.max() <= slots
    assert tokens.max() <= kv_tokens
    done = result.status == Outcome.FINISHED
    np.testing.assert_array_equal((result.end_s - result.start_s)[done], result.output_tokens[done])


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(30, 60))
def test_invariant_1_with_unknown_lengths_everybody_still_ends(seed: int, slots: int, kv_tokens: int) -> None:
    result = run(random_jobs(seed, 25, span_s=30, longest=15, prompt=10), slots, kv_tokens, lengths="none")
    assert result.finished == 25
