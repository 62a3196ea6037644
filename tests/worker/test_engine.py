"""The engine of the worker: by hand, and against the simulator's aggregated engine on the same arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.simulator import EngineConfig, Scenario, affine_decode, affine_prefill
from bidroute.simulator.engines import Engines
from bidroute.simulator.layout import D_PASSES, D_WASTED, FOREVER, R_END, R_FIRST, R_PREEMPTIONS
from bidroute.traces.workload import Workload
from bidroute.worker.engine import Engine, Sequence

SECOND = affine_decode(1.0, 0.0, 0.0)
AT_ONCE = affine_prefill(0.0, 0.0)


def engine(slots: int = 4, blocks: int = 8, block_size: int = 4, budget: int = 16) -> Engine:
    return Engine(slots, blocks, block_size, budget, SECOND, AT_ONCE)


def run_to_end(one: Engine) -> int:
    passes = 0
    while one.begin() is not None:
        one.complete()
        passes += 1
    return passes


def test_one_request_takes_a_pass_per_token_and_frees_everything() -> None:
    one = engine()
    sequence = Sequence(prompt=5, output=6)
    one.add(sequence)
    assert one.begin() == 0.0  # the prefill
    assert one.free == 6
    assert one.complete() == [sequence]
    assert run_to_end(one) == 5
    assert (sequence.generated, sequence.done, one.free, one.running) == (6, True, 8, 0)
    counters = one.counters
    assert (counters.passes, counters.prompt_tokens, counters.generation_tokens) == (6, 5, 6)
    assert counters.pass_tokens == 10  # the prefill gives the first token too, which no iteration has as input


def test_a_prompt_longer_than_the_budget_is_cut_into_chunks() -> None:
    one = engine(budget=4)
    one.add(Sequence(prompt=10, output=1))
    assert run_to_end(one) == 3
    assert one.counters.prompt_tokens == 10


def test_the_last_in_is_preempted_and_starts_again() -> None:
    one = engine(slots=2, blocks=4, block_size=2)
    first, last = Sequence(prompt=2, output=6), Sequence(prompt=2, output=6)
    one.add(first)
    one.add(last)
    ended = []
    while one.begin() is not None:
        ended += [sequence for sequence in one.complete() if sequence.done]
    assert ended == [first, last]
    assert (first.preemptions, last.preemptions > 0) == (0, True)
    assert one.counters.preemptions == last.preemptions
    assert one.counters.generation_tokens == 12
    assert one.free == 4


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_who_leaves_frees_its_kv_at_once(passes: int) -> None:
    """Waiting, while its prompt is cut into chunks, and while it decodes."""
    one = engine(slots=1, budget=4)
    stays, leaves = Sequence(prompt=3, output=9), Sequence(prompt=6, output=9)
    for sequence in (leaves, stays):
        one.add(sequence)
    for _ in range(passes):
        one.begin()
        one.complete()
    one.begin()
    one.cancel(leaves)
    one.cancel(leaves)
    assert one.free == 8
    one.complete()
    run_to_end(one)
    assert (stays.generated, leaves.generated < 9, one.free) == (9, True, 8)


rows = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=25).map(
    sorted
)


@given(rows=rows, slots=st.integers(1, 6), block_size=st.sampled_from([1, 4, 16]), budget=st.integers(6, 40))
def test_it_does_what_the_simulator_does(
    rows: list[tuple[int, int, int]], slots: int, block_size: int, budget: int
) -> None:
    """Same iterations, same preemptions, same times of first and last tokens, under KV pressure."""
    latency, prefill = affine_decode(0.01, 0.001, 0.00001), affine_prefill(0.002, 0.0001)
    arrival_s = np.array([at for at, _, _ in rows]) * 1e-3 + 1e-4  # no arrival falls on the end of a pass
    arrival_s -= arrival_s[0]
    prompts, outputs = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    scenario = Scenario(
        Workload("rows", arrival_s, prompts, outputs),
        (Device("one", slots, 96, block_size),),
        latency,
        prefill,
        mode="aggregated",
        engine=EngineConfig(block_size=block_size, max_batched_tokens=budget),
    )
    simulated = Engines(scenario)
    simulated.link(0, np.arange(len(rows)))
    simulated.stop_logging()
    simulated.advance(FOREVER)

    live = Engine(slots, 96 // block_size, block_size, budget, latency, prefill)
    sequences = [Sequence(int(prompt), int(output)) for prompt, output in zip(prompts, outputs, strict=True)]
    first_s, end_s = drive(live, sequences, arrival_s)
    assert np.allclose(first_s, simulated.requests[:, R_FIRST] / 1e9, atol=1e-6)
    assert np.allclose(end_s, simulated.requests[:, R_END] / 1e9, atol=1e-6)
    assert [one.preemptions for one in sequences] == simulated.requests[:, R_PREEMPTIONS].tolist()
    assert live.counters.passes == simulated.devices[0, D_PASSES]
    assert simulated.devices[0, D_WASTED] >= live.counters.preemptions > 0 or live.counters.preemptions == 0
    assert live.free == 96 // block_size


def drive(live: Engine, sequences: list[Sequence], arrival_s: np.ndarray) -> tuple[list[float], list[float]]:
    """Run the engine in virtual time; returns when each request had its first and its last token."""
    first_s, end_s = [0.0] * len(sequences), [0.0] * len(sequences)
    place = {id(sequence): index for index, sequence in enumerate(sequences)}
    now_s, arrived = 0.0, 0
    while True:
        while arrived < len(sequences) and arrival_s[arrived] <= now_s + 1e-10:
            live.add(sequences[arrived])
            arrived += 1
        duration_s = live.begin()
        if duration_s is None:
            if arrived == len(sequences):
                return first_s, end_s
            now_s = float(arrival_s[arrived])
            continue
        now_s += duration_s
        for sequence in live.complete():
            if sequence.generated == 1:
                first_s[place[id(sequence)]] = now_s
            if sequence.done:
                end_s[place[id(sequence)]] = now_s
