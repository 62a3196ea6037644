"""A sweep in the terminal and as data: the sentence, the front, the baselines, and the presets by their own goals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bidroute.experiments.frontier import FRONT_MEASURES, Outcome, Sweep, preset_standings
from bidroute.experiments.frontier.candidates import BASELINE, FOUND, PRESET
from bidroute.experiments.frontier.outcomes import costs, spread_out
from bidroute.report.numbers import figure, percent

FRONT_ROWS = 14  # settings of the front in the terminal; files have them all


def front_sentence(sweep: Sweep) -> str:
    """How much of what was run is on the front."""
    kinds = {kind: [one for one in sweep.outcomes if one.candidate.kind == kind] for kind in (FOUND, PRESET, BASELINE)}
    front = {one.candidate.key for one in sweep.front}
    parts = [
        f"{sum(one.candidate.key in front for one in outcomes)} of {len(outcomes)} {name}"
        for outcomes, name in (
            (kinds[FOUND], "settings found"),
            (kinds[PRESET], "presets"),
            (kinds[BASELINE], "baselines"),
        )
        if outcomes
    ]
    measures = ", ".join(measure.label for measure in FRONT_MEASURES)
    return f"On the front of {measures}: {', '.join(parts)}."


def front_table(sweep: Sweep) -> Table:
    """The front, thinned to what shows its extent, then every preset and baseline; best of each column in bold."""
    shown = _shown_front(sweep)
    others = [one for one in sweep.outcomes if one.candidate.kind != FOUND]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("setting", overflow="fold", min_width=30)
    for measure in FRONT_MEASURES:
        table.add_column(measure.head, justify="right", no_wrap=True)
    table.add_column("on the\nfront", justify="center", no_wrap=True)
    best = {measure.label: _best(sweep.outcomes, measure.path, measure.higher_is_better) for measure in FRONT_MEASURES}
    keys = {one.candidate.key for one in sweep.front}
    for kind, outcomes in ((FOUND, shown), (PRESET, others), (BASELINE, others)):
        for outcome in (one for one in outcomes if one.candidate.kind == kind):
            cells = [
                Text(figure(outcome.median(m.path)), style=_style(outcome, m.path, best[m.label]))
                for m in FRONT_MEASURES
            ]
            name = Text(outcome.candidate.label, style="bold cyan" if kind == PRESET else "")
            table.add_row(name, *cells, "●" if outcome.candidate.key in keys else "")
    return table


def standings_table(sweep: Sweep) -> Table:
    """Every preset by its own goal: its figure, the best that was found, and what beats it on everything."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("preset", no_wrap=True)
    for head in ("its goal", "reached", "best found", "behind"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("beaten on all five by", overflow="fold")
    for one in preset_standings(sweep):
        beaten = "" if one.dominated_by is None else one.dominated_by.candidate.label
        figures = figure(one.value), figure(one.best_value), percent(one.behind).replace("+", "")
        table.add_row(Text(one.preset.candidate.label, style="bold cyan"), one.measure.label, *figures, beaten)
    return table


def hidden_rows(sweep: Sweep) -> int:
    """How many settings of the front the terminal leaves out."""
    return sum(one.candidate.kind == FOUND for one in sweep.front) - len(_shown_front(sweep))


def _shown_front(sweep: Sweep) -> list[Outcome]:
    front = [one for one in sweep.front if one.candidate.kind == FOUND]
    return [front[row] for row in spread_out(costs(front), FRONT_ROWS)] if front else []


def sweep_data(sweep: Sweep) -> dict[str, Any]:
    """The JSON document: `scenario`, `measures`, `points` (best E2E mean first) and `presets`."""
    places = {id(outcome): beaten for outcome, beaten in zip(sweep.outcomes, sweep.dominated_by, strict=True)}
    points = sorted(sweep.outcomes, key=lambda one: one.median("e2e_s.mean"))
    return {
        "scenario": sweep.scenario,
        "measures": [measure.path for measure in FRONT_MEASURES],
        "points": [_point(one, places[id(one)]) for one in points],
        "presets": [
            {
                "preset": one.preset.candidate.objective,
                "measure": one.measure.path,
                "value": one.value,
                "best": one.best_value,
                "best_objective": one.best.candidate.objective,
                "best_policy": one.best.candidate.policy,
                "behind": one.behind,
            }
            for one in preset_standings(sweep)
        ],
    }


def _point(outcome: Outcome, beaten: Outcome | None) -> dict[str, Any]:
    candidate = outcome.candidate
    return {
        "kind": candidate.kind,
        "label": candidate.label,
        "policy": candidate.policy,
        "objective": candidate.objective if candidate.kind != BASELINE else None,
        "knobs": dict(candidate.knobs),
        "on_front": beaten is None,
        "dominated_by": None if beaten is None else beaten.candidate.label,
        "median": {measure.path: _or_none(outcome.median(measure.path)) for measure in FRONT_MEASURES},
        "rows": list(outcome.rows),
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _best(outcomes: Sequence[Outcome], path: str, higher: bool) -> str:
    medians = [value for value in (one.median(path) for one in outcomes) if math.isfinite(value)]
    return figure(max(medians) if higher else min(medians)) if medians else ""


def _style(outcome: Outcome, path: str, best: str) -> str:
    return "bold green" if figure(outcome.median(path)) == best else ""
