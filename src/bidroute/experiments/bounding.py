"""Bounds on a whole scenario, seed by seed, and how far each run of a comparison is from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from bidroute.core.objective import parse_objective
from bidroute.experiments.describe import describe
from bidroute.experiments.results import Comparison, Result
from bidroute.experiments.scenario import prepare
from bidroute.experiments.settings import ScenarioSettings, require_counts
from bidroute.experiments.workers import Progress
from bidroute.simulator import Scenario

DEFAULT_STEPS = 150


def scenario_bounds(
    settings: ScenarioSettings, seeds: int = 1, steps: int = DEFAULT_STEPS, on_progress: Progress | None = None
) -> dict[str, Any]:
    """The bounds of seeds 0 … seeds − 1 as plain data: `scenario`, and `bounds`, one row per seed.

    A recorded trace is the same for all seeds and computed once. `steps` of the search for prices; more are tighter.
    Raises ConfigError or TraceError for anything that no bound is known for.
    """
    require_counts(seeds=seeds, steps=steps)
    experiment = prepare(settings, list(range(seeds)))
    distinct = seeds if settings.is_builtin else 1
    found = []
    for seed in range(distinct):

        def told(done: int, bound: str, seed: int = seed) -> None:
            if on_progress is not None:
                on_progress(seed * 3 * steps + done, distinct * 3 * steps, f"seed {seed}, {bound}")

        found.append(_bounds(experiment.scenarios[seed], settings, steps, told))
    rows = [{"seed": seed, **found[min(seed, distinct - 1)]} for seed in range(seeds)]
    return {"scenario": describe(experiment), "bounds": rows}


def _bounds(
    scenario: Scenario, settings: ScenarioSettings, steps: int, told: Callable[[int, str], None]
) -> dict[str, Any]:
    """All bounds of one seed. `told` learns how many of the 3 × `steps` steps are done, and about which bound."""
    from bidroute.bounds import Worth, lower_bounds, problem_of, reward_bound  # its kernels are only for who bounds

    problem = problem_of(scenario)
    lower = lower_bounds(problem, steps, lambda done, total, value: told(done, f"latency about {value:.3g} s"))
    worth = Worth.of(problem, parse_objective(settings.objective), scenario.ttft_slo_s, scenario.e2e_slo_s)
    before = lower.ttft_prices
    most = reward_bound(
        problem, worth, steps, before, lambda done, value: told(2 * steps + done, f"reward about {value:.3g}")
    )
    times_s = {name: getattr(lower, name) for name in ("quick_e2e_s", "e2e_s", "ttft_s")}
    return {"requests": lower.requests, **times_s, "reward": most, "reward_of_one": float(worth.after(0.0).max())}


def add_bounds(comparison: Comparison, bounds: dict[str, Any]) -> None:
    """Give every row `e2e_over_bound`, `ttft_over_bound` and `reward_of_bound`, None where the bound does not speak of
    that run.

    Those on latency do not where requests were refused that they count, and that on TTFT not where any was preempted.
    """
    by_seed = {row["seed"]: row for row in bounds["bounds"]}
    for result in comparison.results:
        row = by_seed[result.seed]
        same = _served(result, comparison) == row["requests"]
        whole = result.row["preemptions"] == 0
        e2e, ttft = (_ratio(result.value(f"{name}_s.mean"), row[f"{name}_s"]) for name in ("e2e", "ttft"))
        result.row["e2e_over_bound"] = e2e if same else None
        result.row["ttft_over_bound"] = ttft if same and whole else None
        result.row["reward_of_bound"] = _ratio(result.value("reward"), _most_reward(result, row, comparison))
    comparison.scenario["bounds"] = bounds["bounds"]


def _most_reward(result: Result, row: dict[str, Any], comparison: Comparison) -> float:
    """The bound on the mean reward of all requests of a run. It holds without preemption; a request that was preempted
    can be worth no more than the best of all, whatever it pays, so one of that is added for each (docs/bounds.md)."""
    preempted = min(int(result.row["preemptions"]), row["requests"])
    most: float = row["reward"] * row["requests"] + preempted * row["reward_of_one"]
    return most / float(comparison.scenario["workload"]["requests"])


def _served(result: Result, comparison: Comparison) -> int:
    total: int = comparison.scenario["workload"]["requests"]
    return total - int(result.row["refused"]) - int(result.row["unfinished"])


def _ratio(value: float, bound: float) -> float | None:
    return value / bound if math.isfinite(value) and bound > 0 else None
