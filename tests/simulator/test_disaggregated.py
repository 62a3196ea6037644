"""Disaggregated clusters by hand (the reference files cover the rest)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.policies.base import Policy
from bidroute.simulator import (
    EngineConfig,
    Outcome,
    PrefillPool,
    RecordOptions,
    Scenario,
    affine_decode,
    affine_prefill,
    simulate,
)
from bidroute.simulator.disaggregated import run_disaggregated
from bidroute.simulator.host import Host
from bidroute.simulator.layout import D_FREE
from tests.simulator.helpers import Cycle, Fifo, OneClass, ShortestQueue, devices, workload

SECOND_PER_PERIOD = affine_decode(1.0, 0.0, 0.0)
TENTH_PER_TOKEN = affine_prefill(0.0, 0.1)
POLICIES = [Cycle, ShortestQueue, Fifo]


def scenario(
    rows: list[tuple[float, int, int]], pool: PrefillPool, workers: int = 1, slots: int = 1, kv_tokens: int = 100
) -> Scenario:
    return Scenario(
        workload(rows),
        devices(1, slots, kv_tokens),
        SECOND_PER_PERIOD,
        TENTH_PER_TOKEN,
        "disaggregated",
        workers,
        prefill_pool=pool,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_first_token_comes_from_the_decode_device(policy: type[Policy]) -> None:
    result = simulate(scenario([(0.0, 5, 3)], PrefillPool()), policy(), OneClass())
    assert (result.start_s[0], result.first_token_s[0], result.end_s[0]) == (0.5, 1.5, 3.5)
    assert (result.queued_s[0], result.held_s[0]) == (0.5, 0.0)  # not the prefill


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("prefill_kv", "third_starts"), [(4, 2.4), (8, 1.4)], ids=["tight", "ample"])
def test_prefill_kv_is_held_until_the_first_decode_pass(
    policy: type[Policy], prefill_kv: int, third_starts: float
) -> None:
    """Decode boundaries are at 0.4 + k. The second prefill ends at 0.8 and joins at 1.4, so the third, where it
    must wait for that KV, is prefilled only then."""
    rows = [(0.0, 4, 9), (0.0, 4, 1), (0.0, 4, 1)]
    result = simulate(scenario(rows, PrefillPool(1, prefill_kv), slots=3), policy(), OneClass())
    assert result.start_s.tolist() == pytest.approx([0.4, 1.4, third_starts])
    assert result.held_s.tolist()[:2] == pytest.approx([0.0, 1.4 - 0.8])


def test_a_prompt_larger_than_a_prefill_worker_is_refused() -> None:
    result = simulate(scenario([(0.0, 50, 3), (0.0, 5, 3)], PrefillPool(kv_tokens=20)), Cycle(), OneClass())
    assert result.status.tolist() == [Outcome.REFUSED, Outcome.FINISHED]


jobs = st.lists(
    st.tuples(st.integers(0, 40).map(lambda ms: ms / 1000), st.integers(0, 12), st.integers(1, 25)),
    min_size=1,
    max_size=20,
)


@given(
    rows=jobs,
    workers=st.integers(1, 3),
    slots=st.integers(1, 4),
    kv_tokens=st.integers(37, 80),
    pool=st.builds(PrefillPool, st.integers(1, 4), st.integers(12, 40), st.sampled_from([4, 10, 8192])),
    policy=st.sampled_from(POLICIES),
    prefill_s=st.sampled_from([0.0, 1e-3]),
)
@settings(max_examples=120, deadline=None)
def test_every_request_finishes_and_everything_is_given_back(
    rows: list[tuple[float, int, int]],
    workers: int,
    slots: int,
    kv_tokens: int,
    pool: PrefillPool,
    policy: type[Policy],
    prefill_s: float,
) -> None:
    times = np.cumsum([gap for gap, _, _ in rows])
    one = Scenario(
        workload([(float(t), prompt, output) for t, (_, prompt, output) in zip(times, rows, strict=True)]),
        devices(2, slots, kv_tokens),
        affine_decode(0.004, 1e-3, 1e-5),
        affine_prefill(prefill_s, prefill_s / 10),
        "disaggregated",
        workers,
        EngineConfig(recompute_s_per_token=1e-4),
        pool,
    )
    host = Host(one, policy(), OneClass(), None, RecordOptions())
    run_disaggregated(host)
    assert np.array_equal(host.engines.devices[:, D_FREE], host.engines.total_blocks)
    assert not host.controller.state.fleet.open_leases.any()
    result = simulate(one, policy(), OneClass())
    assert result.finished == len(rows)
    assert np.all(result.start_s >= result.arrival_s)
    assert np.all(result.first_token_s > result.start_s)
    watched = simulate(one, policy(), OneClass(), record=RecordOptions(0.01))
    np.testing.assert_array_equal(watched.end_s, result.end_s)
