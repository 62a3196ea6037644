"""The tables of docs/vidur.md: between its markers, made of the runs alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bidroute.errors import ConfigError
from bidroute.experiments.benchmarks import machine
from bidroute.report.numbers import figure
from tools.results_vidur.experiments import (
    BASELINE,
    EXPERIMENTS,
    NOISY,
    OBJECTIVES,
    POLICIES,
    PUBLISHED,
    SHIFTED,
    SUBJECT,
    Case,
    Experiment,
    cases,
)
from tools.results_vidur.running import SLO, Row

BEGIN, END = "<!-- made by make results-vidur -->", "<!-- end of what make results-vidur makes -->"
DASH = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run: where it is in a row, in which unit tables show it, and whether more of it is better."""

    title: str
    path: tuple[str, ...]
    unit: float = 1.0
    more_is_better: bool = False

    def of(self, row: Row) -> float:
        """Its value, in the unit of the tables."""
        value: Any = row
        for name in self.path:
            value = value[name]
        return float(value) * self.unit


FIGURES = (
    Figure("E2E mean", ("e2e_s", "mean")),
    Figure("E2E p95", ("e2e_s", "p95")),
    Figure("E2E p99", ("e2e_s", "p99")),
    Figure("TTFT mean", ("ttft_s", "mean")),
    Figure("TTFT p99", ("ttft_s", "p99")),
    Figure("tokens/s", ("output_tokens_per_s",), more_is_better=True),
    Figure("SLO violations", ("slo_violations",), unit=100.0),
)
IN_PAPER = tuple(one for one in FIGURES if one.title in PUBLISHED)
COUNTS = ("preemptions", "refused", "unfinished")


class Runs:
    """The rows of all runs, to be asked by experiment, policy and objective; lists are by seed.

    An experiment counts with those seeds of which every run is there.
    """

    def __init__(self, rows: Mapping[Case, Row]) -> None:
        self._rows = {(case.experiment, case.policy, case.objective, case.seed): row for case, row in rows.items()}
        self.requests = {case.experiment: case.requests for case in rows}
        self.seeds = {one: self._seeds_of(one) for one in self.requests}
        self.experiments: list[Experiment] = [one for one in EXPERIMENTS if self.seeds.get(one)]

    def _seeds_of(self, experiment: Experiment) -> list[int]:
        """The seeds of which every run of the experiment is there."""
        seeds = sorted({seed for one, _, _, seed in self._rows if one == experiment})
        needed = {seed: list(cases(1, (seed,), (experiment.name,))) for seed in seeds}
        return [
            seed
            for seed, wanted in needed.items()
            if all((experiment, case.policy, case.objective, seed) in self._rows for case in wanted)
        ]

    def named(self, names: tuple[str, ...]) -> list[Experiment]:
        """The experiments of these names that were run."""
        return [one for one in self.experiments if one.name in names]

    def policies(self, experiment: Experiment) -> list[str]:
        """The policies that were run, in the order of the tables."""
        ran = {policy for one, policy, _, _ in self._rows if one == experiment}
        return [policy for policy in POLICIES if policy in ran]

    def objectives(self, experiment: Experiment) -> list[str]:
        """The objectives that bid_price was run with."""
        ran = {objective for one, _, objective, _ in self._rows if one == experiment}
        return [objective for objective in OBJECTIVES if objective in ran]

    def rows(self, experiment: Experiment, policy: str, objective: str = "balanced") -> list[Row]:
        """One row per seed."""
        return [self._rows[experiment, policy, objective, seed] for seed in self.seeds[experiment]]

    def values(self, one: Figure, experiment: Experiment, policy: str) -> list[float]:
        """A figure by seed."""
        return [one.of(row) for row in self.rows(experiment, policy)]

    def improvements(self, one: Figure, experiment: Experiment, objective: str = "balanced") -> list[float]:
        """By how many percent bid_price is better than round robin, by seed; NaN where there is nothing to improve."""
        pairs = zip(self.rows(experiment, BASELINE), self.rows(experiment, SUBJECT, objective), strict=True)
        return [improvement(one, one.of(before), one.of(after)) for before, after in pairs]


def improvement(one: Figure, before: float, after: float) -> float:
    """In percent of what was before; positive is better."""
    if before == 0.0:
        return math.nan
    return 100.0 * (after - before if one.more_is_better else before - after) / before


def write_tables(rows: Mapping[Case, Row], page: Path) -> None:
    """Replace what is between the markers of the page. Raises ConfigError where it has none."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"{page}: no markers; expected the lines {BEGIN!r} and {END!r}, between which tables go")
    page.write_text(f"{before}{BEGIN}\n\n{tables(Runs(rows))}\n{END}{after}", encoding="utf-8")


def tables(runs: Runs) -> str:
    """All that the tool says, as Markdown."""
    where = machine()
    parts = [
        f"Figures are medians over the seeds, ± half their range. An SLO is violated by more than {SLO.ttft_s:g} s to "
        f"the first token, {SLO.e2e_s:g} s to the end or {SLO.tpot_s:g} s per token. Processor: {where['processor']}; "
        f"Python {where['python']}.\n"
    ]
    for title, names, column in (("Noisy lengths", NOISY, 0), ("Arrival rate shift", SHIFTED, 1)):
        if experiments := runs.named(names):
            parts.append(f"### {title}: published and ours\n\n{_published(runs, experiments, column)}")
    parts += [
        f"### Objectives: {one.title}\n\n{_by_objective(runs, one)}"
        for one in runs.experiments
        if len(runs.objectives(one)) > 1
    ]
    parts.append(f"### Who is best, and how far bid_price is from it\n\n{_standing(runs)}")
    parts += [
        f"### {_title(one, runs.requests[one], runs.seeds[one])}\n\n{_comparison(runs, one)}"
        for one in runs.experiments
    ]
    return "\n".join(parts)


def _published(runs: Runs, experiments: list[Experiment], column: int) -> str:
    head = ["better than round robin by, %", "published", *(one.title for one in experiments)]
    lines = []
    for one in IN_PAPER:
        goal = PUBLISHED[one.title][column]
        cells = [_reached(runs.improvements(one, experiment), goal) for experiment in experiments]
        lines.append([one.title, f"+{goal:g}", *cells])
    return _table(head, lines)


def _by_objective(runs: Runs, experiment: Experiment) -> str:
    head = ["better than round robin by, %", *(one.title for one in FIGURES)]
    lines = [
        [objective, *(_spread(runs.improvements(one, experiment, objective), sign=True) for one in FIGURES)]
        for objective in runs.objectives(experiment)
    ]
    return _table(head, lines)


def _standing(runs: Runs) -> str:
    """For every experiment and figure the best policy, and the distance of bid_price where it is another."""
    lines = []
    for experiment in runs.experiments:
        cells = []
        for one in FIGURES:
            medians = {policy: _median(runs.values(one, experiment, policy)) for policy in runs.policies(experiment)}
            best = (max if one.more_is_better else min)(medians, key=lambda policy: medians[policy])
            distance = abs(improvement(one, medians[best], medians[SUBJECT]))
            behind = f"{best}, {_percent(distance)} %" if math.isfinite(distance) else best
            cells.append(f"**{SUBJECT}**" if medians[best] == medians[SUBJECT] else behind)
        lines.append([experiment.title, *cells])
    return _table(["", *(one.title for one in FIGURES)], lines)


def _comparison(runs: Runs, experiment: Experiment) -> str:
    head = ["policy", *(one.title + (", s" if one.path[0].endswith("_s") else "") for one in FIGURES[:-2])]
    head += ["tokens/s", "SLO violations, %", "preempted", "refused", "unfinished"]
    best = {one: _best(runs, experiment, one) for one in FIGURES}
    lines = []
    for policy in runs.policies(experiment):
        cells = []
        for one in FIGURES:
            values = runs.values(one, experiment, policy)
            text = _spread(values)
            cells.append(f"**{text}**" if figure(_median(values)) == best[one] else text)
        counts = [f"{_median([row[name] for row in runs.rows(experiment, policy)]):.0f}" for name in COUNTS]
        lines.append([POLICIES[policy], *cells, *counts])
    return _table(head, lines)


def _best(runs: Runs, experiment: Experiment, one: Figure) -> str:
    medians = [_median(runs.values(one, experiment, policy)) for policy in runs.policies(experiment)]
    return figure(max(medians) if one.more_is_better else min(medians))


def _title(experiment: Experiment, requests: int, seeds: list[int]) -> str:
    shifted = f", from the middle on {experiment.load * experiment.shift:g}" if experiment.shift != 1.0 else ""
    load = f"load {experiment.load:g}{shifted}"
    by_seed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"{experiment.title} ({requests} requests, {load}, lengths known: {experiment.known}; {by_seed})"


def _reached(values: list[float], goal: float) -> str:
    text = _spread(values, sign=True)
    return f"**{text}**" if _median(values) >= goal else text


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _spread(values: list[float], *, sign: bool = False) -> str:
    """The median ± half the range."""
    middle = _median(values)
    if not math.isfinite(middle):
        return DASH
    half = (max(values) - min(values)) / 2.0
    shown = _percent if sign else figure
    plus = "+" if sign and middle >= 0.0 else ""
    return f"{plus}{shown(middle)}" + (f" ±{shown(half)}" if half else "")


def _percent(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 9.95 else 1}f}".replace("-", "−") if math.isfinite(value) else DASH


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))
