"""Bounds on a whole scenario, seed by seed, and how far each run of a comparison is from them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from bidroute.experiments.describe import describe
from bidroute.experiments.results import Comparison, Result
from bidroute.experiments.scenario import prepare
from bidroute.experiments.settings import ScenarioSettings, require_counts
from bidroute.experiments.workers import Progress

DEFAULT_STEPS = 150


def scenario_bounds(
    settings: ScenarioSettings, seeds: int = 1, steps: int = DEFAULT_STEPS, on_progress: Progress | None = None
) -> dict[str, Any]:
    """The bounds of seeds 0 … seeds − 1 as plain data: `scenario`, and `bounds`, one row per seed.

    A recorded trace is the same for all seeds and computed once. `steps` of the search for prices; more are tighter.
    Raises ConfigError or TraceError for anything that no bound is known for.
    """
    from bidroute.bounds import lower_bounds, problem_of  # its kernels are not for those who only compare

    require_counts(seeds=seeds, steps=steps)
    experiment = prepare(settings, list(range(seeds)))
    distinct = seeds if settings.is_builtin else 1
    found = []
    for seed in range(distinct):

        def told(done: int, total: int, value: float, seed: int = seed) -> None:
            if on_progress is not None:
                on_progress(seed * total + done, distinct * total, f"seed {seed}, about {value:.3g} s")

        found.append(lower_bounds(problem_of(experiment.scenarios[seed]), steps, told))
    rows = [{"seed": seed, **asdict(found[min(seed, distinct - 1)])} for seed in range(seeds)]
    return {"scenario": describe(experiment), "bounds": rows}


def add_bounds(comparison: Comparison, bounds: dict[str, Any]) -> None:
    """Give every row `e2e_over_bound` and `ttft_over_bound`, None where the bound does not speak of that run.

    It does not where requests were refused that it counts, and for TTFT where a request was preempted.
    """
    by_seed = {row["seed"]: row for row in bounds["bounds"]}
    for result in comparison.results:
        row = by_seed[result.seed]
        served = _served(result, comparison)
        same = served == row["requests"]
        result.row["e2e_over_bound"] = _ratio(result.value("e2e_s.mean"), row["e2e_s"]) if same else None
        whole = same and result.row["preemptions"] == 0
        result.row["ttft_over_bound"] = _ratio(result.value("ttft_s.mean"), row["ttft_s"]) if whole else None
    comparison.scenario["bounds"] = bounds["bounds"]


def _served(result: Result, comparison: Comparison) -> int:
    total: int = comparison.scenario["workload"]["requests"]
    return total - int(result.row["refused"]) - int(result.row["unfinished"])


def _ratio(value: float, bound: float) -> float | None:
    return value / bound if math.isfinite(value) and bound > 0 else None
