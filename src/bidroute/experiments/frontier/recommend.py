"""Recommending an objective for a goal: searched on one part of the arrivals, checked on another.

A file of arrivals is cut in two by time: settings are searched on the first part and checked on the rest. A built-in
workload is drawn anew for the check. The preset that is the default wins unless the setting found is better on the
part that it was not chosen on, so chance finds of the search are not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bidroute.errors import ConfigError
from bidroute.experiments.describe import describe
from bidroute.experiments.frontier.candidates import BASELINE, PRESET, Candidate, baselines, presets
from bidroute.experiments.frontier.crews import gathered
from bidroute.experiments.frontier.evaluation import Evaluation
from bidroute.experiments.frontier.goals import Goal
from bidroute.experiments.frontier.knobs import WEIGHTS, chosen_knobs
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.frontier.search import Closing, Listed, Search
from bidroute.experiments.frontier.sweep import searched
from bidroute.experiments.scenario import Experiment, prepare
from bidroute.experiments.settings import ScenarioSettings, require_counts
from bidroute.experiments.workers import Progress
from bidroute.traces import Workload

DEFAULT_POINTS = 32
DEFAULT_SEEDS = 2
BASELINE_NAME = "join_shortest_queue"
SEARCHED_SHARE = 0.6  # of a file's requests; the rest is for the check
LEAST_REQUESTS = 40  # in a file: fewer say nothing about a p99


@dataclass(frozen=True, slots=True)
class Compared:
    """One candidate on the part that was searched and on the part held out."""

    searched: Outcome
    held_out: Outcome

    @property
    def candidate(self) -> Candidate:
        """Which one."""
        return self.searched.candidate


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What serves the goal best, beside the default preset and join_shortest_queue.

    `runner_up` is what the search found best where the check preferred the default. `settings` counts those tried.
    `scenario` is plain JSON data of the part that was searched; `parts` says in words what the two parts are.
    """

    goal: Goal
    chosen: Compared
    default: Compared
    baseline: Compared
    runner_up: Compared | None
    settings: int
    parts: tuple[str, str]
    scenario: dict[str, Any]

    @property
    def reached(self) -> tuple[bool, bool]:
        """Whether every limit holds, for every seed: where it was searched, and held out."""
        return self.goal.excess(self.chosen.searched) == 0.0, self.goal.excess(self.chosen.held_out) == 0.0


def recommend(
    settings: ScenarioSettings,
    goal: Goal,
    *,
    knobs: Sequence[str] | None = None,
    points: int = DEFAULT_POINTS,
    search_seed: int = 0,
    seeds: int = DEFAULT_SEEDS,
    jobs: int = 1,
    journal: Path | None = None,
    ray: str | None = None,
    on_progress: Progress | None = None,
) -> Recommendation:
    """Search `points` settings for the goal, beside the presets, and check the best on what was held out.

    Finished runs are noted in `journal`, and those found there are not run again. Raises ConfigError or TraceError for
    anything that cannot be run.
    """
    require_counts(seeds=seeds, jobs=jobs)
    if points < 0:
        raise ConfigError(f"points: {points}; expected a whole number, 0 (presets only) or more")
    turned = chosen_knobs(knobs, WEIGHTS)
    default = Candidate(PRESET, presets()[0].policy, "balanced")
    fixed = [default, *(one for one in presets() if one != default), *baselines([BASELINE_NAME])]
    search: Search = Closing(turned, points, search_seed, goal.score) if points else Listed([])
    first, second, parts = _two_parts(settings, seeds)
    with gathered(jobs, ray) as crew:
        evaluation = Evaluation(first, crew, journal, len(fixed) + search.points, on_progress)
        tried = evaluation.outcomes(fixed)
        tried += searched(evaluation, search, settings.objective)
        ours = [one for one in tried if one.candidate.kind != BASELINE]
        best = goal.best(ours)
        compared = [best, tried[0], tried[len(fixed) - 1]]
        checking = Evaluation(second, crew, journal, len(compared), on_progress)
        checked = checking.outcomes([one.candidate for one in compared])
    chosen, plain, other = (Compared(one, check) for one, check in zip(compared, checked, strict=True))
    worse = goal.best([plain.held_out, chosen.held_out]) is plain.held_out
    return Recommendation(
        goal=goal,
        chosen=plain if worse else chosen,
        default=plain,
        baseline=other,
        runner_up=chosen if worse and chosen.candidate != plain.candidate else None,
        settings=len(ours),
        parts=parts,
        scenario=describe(first),
    )


def _two_parts(settings: ScenarioSettings, seeds: int) -> tuple[Experiment, Experiment, tuple[str, str]]:
    """The experiment to search on, the one to check on, and what each of them is, in words."""
    if settings.is_builtin:
        searched_seeds, check_seeds = list(range(seeds)), list(range(seeds, 2 * seeds))
        first = prepare(settings, searched_seeds)
        as_fast = replace(settings, speedup=first.speedup, load=None)  # the speed-up may depend on the draw
        second = prepare(as_fast, check_seeds)
        return first, second, (_seeds(searched_seeds), f"new draws of it, {_seeds(check_seeds)}")
    whole = prepare(settings, list(range(seeds)))
    count = len(whole.first.workload)
    if count < LEAST_REQUESTS:
        raise ConfigError(
            f"{settings.trace} has {count} requests to search and check on; expected {LEAST_REQUESTS} or more"
        )
    cut = round(SEARCHED_SHARE * count)
    first, second = _part(whole, slice(0, cut)), _part(whole, slice(cut, count))
    return first, second, (f"requests 0 to {cut - 1}", f"requests {cut} to {count - 1}, held out")


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def _part(whole: Experiment, rows: slice) -> Experiment:
    """The same experiment on some of its requests, whose times then start at 0."""
    scenarios, predictions = {}, {}
    for seed, scenario in whole.scenarios.items():
        workload, predicted = scenario.workload, whole.predictions[seed]
        part = Workload(
            workload.name,
            np.ascontiguousarray(workload.arrival_s[rows] - workload.arrival_s[rows][0]),
            workload.prompt_tokens[rows],
            workload.output_tokens[rows],
            workload.skipped_rows,
        )
        scenarios[seed] = replace(scenario, workload=part)
        predictions[seed] = None if predicted is None else predicted[rows]
    return replace(whole, scenarios=scenarios, predictions=predictions)
