"""Explaining one request: run the policy again and keep, for every decision the request lived through, its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bidroute.errors import ConfigError
from bidroute.experiments.comparison import run_task
from bidroute.experiments.describe import describe
from bidroute.experiments.run import simulated
from bidroute.experiments.scenario import prepare
from bidroute.experiments.settings import ScenarioSettings
from bidroute.policies import Explanation, PolicySettings, build_policy
from bidroute.simulator import Outcome, RecordOptions, RunResult


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """One request of one run. Times are seconds, None where it never happened; `chosen` says who picked it.

    `epochs` holds one explanation per decision (and per device, for policies that score devices), in time order.
    """

    policy: str
    seed: int
    request_id: int
    chosen: str
    arrival_s: float
    held_s: float | None
    start_s: float | None
    end_s: float | None
    device: int | None
    prompt_tokens: int
    output_tokens: int
    predicted_tokens: float | None
    preemptions: int
    outcome: str
    epochs: list[Explanation]
    scenario: dict[str, Any]


def explain(settings: ScenarioSettings, policy: str, request_id: int | None = None, seed: int = 0) -> ExplainedRequest:
    """Explain a request of the run of `policy`; None takes the one that was held longest.

    Raises ConfigError where the request does not exist or the policy gives no reasons.
    """
    if seed < 0:
        raise ConfigError(f"seed: {seed}; expected a whole number, 0 or more")
    build_policy(policy, PolicySettings(objective=settings.objective))  # refuses wrong settings at once
    experiment = prepare(settings, [seed])
    task = run_task(experiment, policy, seed)
    count = len(experiment.first.workload)
    if request_id is not None and not 0 <= request_id < count:
        raise ConfigError(f"request {request_id}; this run has requests 0 to {count - 1}")
    chosen = "asked for" if request_id is not None else "the one held longest"
    if request_id is None:
        request_id = longest_held(simulated(task))
    result = simulated(task, RecordOptions(explain_request_ids=(request_id,)))
    if not result.explanations and result.status[request_id] != Outcome.REFUSED:
        raise ConfigError(f"policy {policy} gives no reasons; choose another, such as bid_price or fifo+safety")
    predictions = experiment.predictions[seed]
    device = int(result.device[request_id])
    return ExplainedRequest(
        policy=policy,
        seed=seed,
        request_id=request_id,
        chosen=chosen,
        arrival_s=float(result.arrival_s[request_id]),
        held_s=_time(result.held_s[request_id]),
        start_s=_time(result.start_s[request_id]),
        end_s=_time(result.end_s[request_id]),
        device=device if device >= 0 else None,
        prompt_tokens=int(result.prompt_tokens[request_id]),
        output_tokens=int(result.output_tokens[request_id]),
        predicted_tokens=None if predictions is None else float(predictions[request_id]),
        preemptions=int(result.preemptions[request_id]),
        outcome=Outcome(int(result.status[request_id])).name.lower(),
        epochs=result.explanations,
        scenario=describe(experiment),
    )


def longest_held(result: RunResult) -> int:
    """The request that waited longest before it first started (the first of equals); never one that was refused."""
    held_s = np.where(result.status == Outcome.UNFINISHED, np.inf, result.held_s)
    if np.all(np.isnan(held_s)):
        raise ConfigError("every request was refused: none fits a device; give more KV tokens or smaller blocks")
    return int(np.nanargmax(held_s))


def _time(value_s: float) -> float | None:
    return float(value_s) if np.isfinite(value_s) else None
