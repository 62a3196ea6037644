"""One run of a comparison: a policy on the scenario of one seed, boiled down to what reports need."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bidroute.core.objective import parse_objective
from bidroute.core.queue import FloatArray
from bidroute.experiments.results import RequestColumns, Result, Timeline, quantiles
from bidroute.lengths import build_predictor
from bidroute.policies import PolicySettings, build_policy
from bidroute.simulator import Outcome, RecordOptions, RunResult, Scenario, Slo, simulate, summary
from bidroute.simulator import Timeline as Samples

WARM_UP_REQUESTS = 48
_warm: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class RunTask:
    """What one run needs; plain data, so that it can go to another process.

    `timeline_interval_s` is simulated time between samples (None: no timeline is kept).
    """

    policy: str
    seed: int
    scenario: Scenario
    predicted_tokens: FloatArray | None
    lengths: str
    objective: str
    slo: Slo
    timeline_interval_s: float | None = None
    keep_requests: bool = False


def run(task: RunTask) -> Result:
    """Run the task and keep its figures. Compilation is paid before the clock starts."""
    _warm_up(task)
    record = None if task.timeline_interval_s is None else RecordOptions(task.timeline_interval_s)
    result = simulated(task, record)
    finished = result.status == Outcome.FINISHED
    e2e_s = np.where(finished, result.end_s - result.arrival_s, np.nan)
    ttft_s = np.where(finished, result.first_token_s - result.arrival_s, np.nan)
    return Result(
        policy=task.policy,
        seed=task.seed,
        row=_without_nan({**summary(result, task.slo), "reward": _reward(result, task)}),
        e2e_quantiles_s=quantiles(e2e_s),
        ttft_quantiles_s=quantiles(ttft_s),
        timeline=None if result.timeline is None else _timeline(result.timeline, task.scenario),
        requests=_columns(result, e2e_s, ttft_s) if task.keep_requests else None,
    )


def _reward(result: RunResult, task: RunTask) -> float:
    """What requests were worth on average (`Objective.worth`); those that were not served are worth nothing."""
    done = np.flatnonzero(result.status == Outcome.FINISHED)
    arrival_s = result.arrival_s[done]
    waits_s, ttft_s, e2e_s = (one[done] - arrival_s for one in (result.start_s, result.first_token_s, result.end_s))
    in_time = (ttft_s <= task.scenario.ttft_slo_s) & (e2e_s <= task.scenario.e2e_slo_s)
    output_tokens = result.output_tokens[done].astype(np.float64)
    worth = parse_objective(task.objective).worth(waits_s, ttft_s, e2e_s, output_tokens, in_time)
    return float(worth.sum()) / len(result.arrival_s)


def simulated(task: RunTask, record: RecordOptions | None = None) -> RunResult:
    """Simulate the task with a fresh policy and predictor."""
    policy = build_policy(task.policy, PolicySettings(seed=task.seed, objective=task.objective))
    return simulate(
        task.scenario,
        policy,
        build_predictor(task.lengths),
        predicted_tokens=task.predicted_tokens,
        record=record,
    )


def _warm_up(task: RunTask) -> None:
    """Run a little of it once per process, so that no run's figures contain compilation."""
    key = (task.policy, task.scenario.mode)
    if key in _warm:
        return
    _warm.add(key)
    workload = task.scenario.workload.head(WARM_UP_REQUESTS)
    predictions = None if task.predicted_tokens is None else task.predicted_tokens[: len(workload)]
    simulated(replace(task, scenario=replace(task.scenario, workload=workload), predicted_tokens=predictions))


def _columns(result: RunResult, e2e_s: FloatArray, ttft_s: FloatArray) -> RequestColumns:
    return RequestColumns(
        arrival_s=result.arrival_s,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        device=result.device,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        held_s=result.held_s,
        preemptions=result.preemptions,
    )


def _timeline(samples: Samples, scenario: Scenario) -> Timeline:
    """Per-device samples as totals over the fleet."""
    slots = sum(device.batch_slots for device in scenario.devices)
    kv_tokens = sum(device.kv_tokens for device in scenario.devices)
    priced = bool(np.isfinite(samples.slot_price).any())
    budgeted = priced and any(device.token_budget for device in scenario.devices)
    return Timeline(
        time_s=samples.time_s,
        waiting=samples.queue.astype(np.float64),
        pending=samples.pending.sum(axis=1).astype(np.float64),
        slots_used=samples.slots_used.sum(axis=1) / slots,
        kv_used=samples.kv_used.sum(axis=1) / kv_tokens,
        held=_held_shares(samples),
        slot_price=samples.slot_price.mean(axis=1) if priced else None,
        kv_price=samples.kv_price.mean(axis=1) if priced else None,
        token_price=samples.token_price.mean(axis=1) if budgeted else None,
    )


def _held_shares(samples: Samples) -> dict[str, FloatArray]:
    """The waiting requests split by reason, as the reasons were given since the last sample; float64[points] each.

    A request is counted at every decision it is held through, so counts only say in what proportion.
    """
    counts = {reason: np.diff(held, prepend=0).astype(np.float64) for reason, held in samples.held.items()}
    total = sum(counts.values(), np.zeros(len(samples.time_s)))
    shares = {
        reason: np.divide(count, total, out=np.zeros_like(total), where=total > 0) for reason, count in counts.items()
    }
    return {reason: share * samples.queue for reason, share in shares.items() if share.any()}


def _without_nan(value: Any) -> Any:
    """The same plain data with None for numbers that do not exist."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
