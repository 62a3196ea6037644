"""The kernels against their plain-Python twin, and structure that must hold for any workload."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.simulator import (
    DecodeLatency,
    EngineConfig,
    RecordOptions,
    RunResult,
    Scenario,
    affine_decode,
    affine_prefill,
    simulate,
    table_decode,
)
from tests.simulator.helpers import BlindCycle, Cycle, OneClass, workload
from tests.simulator.twin import Job, Twin

RECOMPUTE_S = 3e-6
PREFILL = affine_prefill(0.002, 1.3e-5)
AFFINE = affine_decode(0.001, 1.1e-4, 2.3e-6)
TABLE = table_decode(
    "t",
    {
        1: (np.array([1.0, 20.0, 90.0]), np.array([0.0011, 0.0013, 0.0031])),
        3: (np.array([5.0, 40.0]), np.array([0.0012, 0.0026])),
        8: (np.array([10.0, 64.0]), np.array([0.0021, 0.0041])),
    },
)

jobs = st.lists(
    st.tuples(
        st.integers(0, 30).map(lambda ms: ms / 1000),  # gap to the arrival before
        st.integers(0, 40),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=24,
)
engines = st.fixed_dictionaries(
    {
        "slots": st.integers(1, 9),
        "blocks": st.integers(4, 60),
        "block_size": st.sampled_from([1, 2, 4, 16]),
        "budget": st.sampled_from([1, 7, 16, 50, 8192]),
        "eviction": st.sampled_from(["preempt", "reserve"]),
        "mode": st.sampled_from(["decode", "aggregated"]),
        "latency": st.sampled_from([AFFINE, TABLE]),
    }
)


def build(rows: list[tuple[float, int, int]], engine: dict[str, object], count: int = 1) -> Scenario:
    arrivals = np.cumsum([gap for gap, _, _ in rows])
    block_size, blocks = int(str(engine["block_size"])), int(str(engine["blocks"]))
    latency = engine["latency"]
    assert isinstance(latency, DecodeLatency)
    return Scenario(
        workload([(float(t), prompt, output) for t, (_, prompt, output) in zip(arrivals, rows, strict=True)]),
        tuple(Device(f"d{d}", int(str(engine["slots"])), blocks * block_size) for d in range(count)),
        latency,
        None if engine["mode"] == "decode" else PREFILL,
        str(engine["mode"]),
        engine=EngineConfig(
            block_size, int(str(engine["budget"])), str(engine["eviction"]), recompute_s_per_token=RECOMPUTE_S
        ),
    )


def run_twin(scenario: Scenario, result: RunResult, device: int = 0) -> tuple[Twin, list[Job]]:
    work, engine, worker = scenario.workload, scenario.engine, scenario.devices[device]
    latency = scenario.latency
    assert isinstance(latency, DecodeLatency)
    assert engine.block_size
    twin = Twin(
        scenario.mode,
        worker.batch_slots,
        worker.kv_tokens // engine.block_size,
        engine.block_size,
        engine.max_batched_tokens if scenario.mode == "aggregated" else 10**9,
        engine.eviction == "reserve",
        lambda batch, kv: round(latency.seconds(batch, kv) * 1e9),
        lambda tokens: round(PREFILL.seconds(tokens) * 1e9),
        lambda tokens: round(RECOMPUTE_S * 1e9) * tokens,
    )
    mine = [
        Job(i, round(work.arrival_s[i] * 1e9), int(work.prompt_tokens[i]), int(work.output_tokens[i]))
        for i in range(len(work))
        if result.device[i] == device
    ]
    twin.run(mine)
    return twin, mine


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@given(rows=jobs, engine=engines)
@settings(max_examples=300, deadline=None)
def test_kernels_equal_their_twin(rows: list[tuple[float, int, int]], engine: dict[str, object]) -> None:
    scenario = build(rows, engine)
    result = simulate(scenario, BlindCycle(), OneClass())
    twin, jobs_run = run_twin(scenario, result)
    for job in jobs_run:
        seen = [ns(column[job.id]) for column in (result.start_s, result.first_token_s, result.end_s)]
        assert (job.id, *seen) == (job.id, job.start_ns, job.first_ns, job.end_ns)
        assert result.preemptions[job.id] == job.preemptions
    assert result.wasted_tokens == twin.wasted
    if scenario.engine.eviction == "reserve":
        assert result.preemptions.sum() == 0


@given(rows=jobs, engine=engines, count=st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_blind_and_looking_paths_give_the_same_run(
    rows: list[tuple[float, int, int]], engine: dict[str, object], count: int
) -> None:
    scenario = build(rows, engine, count)
    assert_same_run(simulate(scenario, BlindCycle(), OneClass()), simulate(scenario, Cycle(), OneClass()))


@given(rows=jobs, engine=engines, interval_ms=st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_sampling_a_timeline_changes_nothing(
    rows: list[tuple[float, int, int]], engine: dict[str, object], interval_ms: int
) -> None:
    scenario = build(rows, engine, 2)
    watched = simulate(scenario, Cycle(), OneClass(), record=RecordOptions(interval_ms / 1000))
    assert_same_run(watched, simulate(scenario, Cycle(), OneClass()))


@pytest.mark.parametrize("mode", ["decode", "aggregated"])
def test_preemptions_waste_what_is_computed_again(mode: str) -> None:
    rows = [(0.0, 10, 30)] * 4
    engine = {"slots": 4, "blocks": 70, "block_size": 1, "budget": 8192, "eviction": "preempt", "latency": AFFINE}
    result = simulate(build(rows, {**engine, "mode": mode}), BlindCycle(), OneClass())
    assert result.finished == 4
    assert result.preemptions.sum() > 0
    assert result.wasted_tokens >= 10 * result.preemptions.sum()


def assert_same_run(one: RunResult, other: RunResult) -> None:
    for name in ("start_s", "first_token_s", "end_s", "device", "preemptions", "status"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.wasted_tokens == other.wasted_tokens
