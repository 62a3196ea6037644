"""Small runs for the invariants: one-second periods, so that a time is a period."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.lengths import build_predictor, predicted_tokens
from bidroute.policies.base import Policy
from bidroute.policies.bid_price import BidPrice
from bidroute.simulator import EngineConfig, RunResult, Scenario, affine_decode, simulate
from bidroute.traces.workload import Workload

Job = tuple[float, int, int]
"""Arrival in seconds, prompt tokens, output tokens."""


def workload(jobs: Sequence[Job]) -> Workload:
    arrival_s, prompt_tokens, output_tokens = zip(*jobs, strict=True)
    return Workload("jobs", np.array(arrival_s, dtype=np.float64), np.array(prompt_tokens), np.array(output_tokens))


def run(
    jobs: Sequence[Job],
    batch_slots: int,
    kv_tokens: int,
    *,
    devices: int = 1,
    lengths: str = "oracle",
    policy: Policy | None = None,
    engine: EngineConfig | None = None,
) -> RunResult:
    """Run the jobs under `bid_price` with the default objective unless another policy is given."""
    trace = workload(jobs)
    fleet = tuple(Device(f"d{g}", batch_slots, kv_tokens, period_s=1.0) for g in range(devices))
    scenario = Scenario(trace, fleet, affine_decode(1.0, 0.0, 0.0), engine=engine or EngineConfig())
    return simulate(
        scenario,
        policy or BidPrice(Objective()),
        build_predictor(lengths),
        predicted_tokens=predicted_tokens(lengths, trace.output_tokens, 1),
    )


def run_unlike(jobs: Sequence[Job], periods_s: Sequence[float], batch_slots: int, kv_tokens: int) -> RunResult:
    """Run the jobs under `bid_price` on devices that differ in their period; lengths unknown."""
    fleet = tuple(Device(f"d{g}", batch_slots, kv_tokens, period_s=period_s) for g, period_s in enumerate(periods_s))
    latency = tuple(affine_decode(period_s, 0.0, 0.0) for period_s in periods_s)
    return simulate(Scenario(workload(jobs), fleet, latency), BidPrice(Objective()), build_predictor("none"))


def random_jobs(seed: int, count: int, *, span_s: int, longest: int, prompt: int, together: bool = False) -> list[Job]:
    """Jobs that arrive on whole seconds within `span_s`."""
    random = np.random.default_rng(seed)
    arrival_s = np.zeros(count) if together else np.sort(random.integers(0, span_s, count))
    outputs = np.minimum(random.geometric(3.0 / longest, count), longest)
    prompts = random.integers(0, prompt + 1, count)
    return [(float(a), int(p), int(o)) for a, p, o in zip(arrival_s, prompts, outputs, strict=True)]


def same(one: RunResult, other: RunResult) -> bool:
    """Equal to the last bit: who started when and where."""
    return bool(
        np.array_equal(one.start_s - one.arrival_s, other.start_s - other.arrival_s, equal_nan=True)
        and np.array_equal(one.device, other.device)
    )
