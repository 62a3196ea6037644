"""The sweep: settings of bid_price by search, the presets and the baselines, all on the same arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bidroute.errors import ConfigError
from bidroute.experiments.describe import describe
from bidroute.experiments.frontier.candidates import BASELINES, FOUND, PRESET, baselines, found, presets
from bidroute.experiments.frontier.crews import gathered
from bidroute.experiments.frontier.evaluation import Evaluation
from bidroute.experiments.frontier.knobs import Knob, chosen_knobs
from bidroute.experiments.frontier.outcomes import Outcome, costs, dominators
from bidroute.experiments.frontier.search import Search, build_search
from bidroute.experiments.measures import MEASURES, Measure
from bidroute.experiments.scenario import prepare
from bidroute.experiments.settings import ScenarioSettings, require_counts
from bidroute.experiments.workers import Progress

DEFAULT_POINTS = 48
DEFAULT_SEEDS = 2
# What each preset is for; `balanced` is for the mean and the tail of both latencies at once.
PRESET_GOALS = {
    "ttft": "ttft_s.mean",
    "latency": "e2e_s.mean",
    "throughput": "output_tokens_per_s",
    "tail": "e2e_s.p99",
    "goodput": "goodput",
}


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What to look for and how: knobs as texts (None: the usual ones), the kind of search, how many points."""

    knobs: Sequence[str] | None = None
    search: str = "random"
    points: int = DEFAULT_POINTS
    seed: int = 0
    baselines: Sequence[str] = BASELINES


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every outcome, and for each the one that dominates it (None: it is on the front), in the same order.

    `scenario` is plain JSON data, with the knobs and the search in it.
    """

    scenario: dict[str, Any]
    outcomes: list[Outcome]
    dominated_by: list[Outcome | None]

    @property
    def front(self) -> list[Outcome]:
        """What nothing beats on all measures at once."""
        return [one for one, other in zip(self.outcomes, self.dominated_by, strict=True) if other is None]


@dataclass(frozen=True, slots=True)
class PresetStanding:
    """A preset by its own goal: its figure, and the best that any setting of bid_price reached."""

    preset: Outcome
    measure: Measure
    value: float
    best: Outcome
    best_value: float
    dominated_by: Outcome | None

    @property
    def behind(self) -> float:
        """How far the preset is behind the best, as a share of the best; 0 where it is the best itself."""
        gap = self.best_value - self.value if self.measure.higher_is_better else self.value - self.best_value
        return gap / self.best_value if self.best_value > 0 else 0.0


def sweep(
    settings: ScenarioSettings,
    search: SearchSettings,
    seeds: int = DEFAULT_SEEDS,
    jobs: int = 1,
    *,
    journal: Path | None = None,
    ray: str | None = None,
    on_progress: Progress | None = None,
) -> Sweep:
    """Run the presets, the baselines and what the search proposes on seeds 0 … seeds − 1.

    Finished runs are noted in `journal`, and those found there are not run again; `ray` is the address of a cluster to
    run on instead of `jobs` processes. More than one job starts processes, so a script must guard its entry point with
    `if __name__ == "__main__"`. Raises ConfigError or TraceError for anything that cannot be run.
    """
    require_counts(seeds=seeds, jobs=jobs)
    knobs = chosen_knobs(search.knobs)
    proposer = build_search(search.search, knobs, search.points, search.seed)
    experiment = prepare(settings, list(range(seeds)))
    fixed = [*presets(), *baselines(search.baselines)]
    with gathered(jobs, ray) as crew:
        evaluation = Evaluation(experiment, crew, journal, len(fixed) + proposer.points, on_progress)
        outcomes = evaluation.outcomes(fixed)
        outcomes += searched(evaluation, proposer, settings.objective)
    first = costs(outcomes)
    if not math.isfinite(first[:, 0].min()):
        raise ConfigError("every request was refused: none fits a device; give more KV tokens or smaller blocks")
    beaten = [None if other is None else outcomes[other] for other in dominators(first)]
    scenario = {**describe(experiment), "search": search.search, "knobs": [described(knob) for knob in knobs]}
    return Sweep(scenario, outcomes, beaten)


def searched(evaluation: Evaluation, search: Search, base: str) -> list[Outcome]:
    """Run a search to its end, on top of the objective `base`; each setting once."""
    outcomes: dict[str, Outcome] = {}
    while batch := search.batch():
        learned = evaluation.outcomes([found(base, settings) for settings in batch])
        search.learn(learned)
        outcomes |= {one.candidate.key: one for one in learned}
    return list(outcomes.values())


def described(knob: Knob) -> dict[str, Any]:
    """A knob as JSON data."""
    where: dict[str, Any] = {"values": list(knob.values)} if knob.values else {"low": knob.low, "high": knob.high}
    return {"name": knob.name, **where, "scale": knob.scale}


def preset_standings(sweep: Sweep) -> list[PresetStanding]:
    """Where every preset with a goal of one figure stands, in the order of the presets."""
    by_path = {measure.path: measure for measure in MEASURES}
    ours = [one for one in sweep.outcomes if one.candidate.kind in (FOUND, PRESET)]
    standings = []
    for outcome, other in zip(sweep.outcomes, sweep.dominated_by, strict=True):
        path = PRESET_GOALS.get(outcome.candidate.objective)
        if outcome.candidate.kind != PRESET or path is None:
            continue
        measure = by_path[path]
        best = ours[int(costs(ours, [measure])[:, 0].argmin())]
        standings.append(PresetStanding(outcome, measure, outcome.median(path), best, best.median(path), other))
    return standings
