"""A recommendation in words, as a table and as data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from bidroute.experiments.frontier.goals import Goal
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.frontier.recommend import Compared, Recommendation
from bidroute.experiments.measures import Measure
from bidroute.report.numbers import figure, percent
from bidroute.report.sentences import scenario_phrase


def recommendation_sentences(advice: Recommendation) -> list[str]:
    """What was searched, what came of it, and what to type."""
    searched, held_out = advice.parts
    return [
        scenario_phrase(advice.scenario),
        f"Goal: {advice.goal}. {advice.settings} settings tried on {searched}; checked on {held_out}.",
        _verdict(advice),
        _gains(advice),
    ]


def recommended_options(advice: Recommendation) -> str:
    """What to type: `--objective …`, with the policy where its options were searched too."""
    candidate = advice.chosen.candidate
    policy = f" --policies {candidate.policy}" if ":" in candidate.policy else ""
    return f"--objective {candidate.objective}{policy}"


def recommendation_table(advice: Recommendation) -> Table:
    """The measures of the goal for the recommended setting, the default and join_shortest_queue, on both parts."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", overflow="fold", min_width=24)
    shown = advice.goal.shown
    for part in ("searched", "held out"):
        for measure in shown.values():
            table.add_column(f"{part}\n{measure.label}", justify="right", no_wrap=True)
    for name, compared in _rows(advice):
        outcomes = (compared.searched, compared.held_out)
        cells = [_cell(advice.goal, one, measure_name) for one in outcomes for measure_name in shown]
        table.add_row(Text(name, style="bold cyan" if compared is advice.chosen else ""), *cells)
    return table


def recommendation_data(advice: Recommendation) -> dict[str, Any]:
    """The JSON document: goal, recommendation, and every figure of those compared, on both parts."""
    return {
        "goal": str(advice.goal),
        "reached": dict(zip(("searched", "held_out"), advice.reached, strict=True)),
        "objective": advice.chosen.candidate.objective,
        "policy": advice.chosen.candidate.policy,
        "settings_tried": advice.settings,
        "parts": dict(zip(("searched", "held_out"), advice.parts, strict=True)),
        "compared": [
            {
                "name": name,
                "policy": compared.candidate.policy,
                "objective": compared.candidate.objective,
                "searched": list(compared.searched.rows),
                "held_out": list(compared.held_out.rows),
            }
            for name, compared in _rows(advice)
        ],
        "scenario": advice.scenario,
    }


def _rows(advice: Recommendation) -> list[tuple[str, Compared]]:
    """Those compared, with their names; the default once where it is what is recommended."""
    rows = [("recommended", advice.chosen)]
    if advice.runner_up is not None:
        rows.append(("found, not recommended", advice.runner_up))
    if advice.chosen.candidate != advice.default.candidate:
        rows.append(("balanced, the default", advice.default))
    else:
        rows[0] = ("recommended: the default", advice.chosen)
    return [*rows, (advice.baseline.candidate.policy, advice.baseline)]


def _verdict(advice: Recommendation) -> str:
    """Whether the goal is reached, and where it is not, by how much it is missed."""
    searched, held_out = advice.reached
    if not advice.goal.limits:
        start = "The goal has no limits to keep."
    elif searched and held_out:
        start = "Every limit holds, on both parts and for every seed."
    elif searched:
        start = f"Every limit holds where it was searched, but not held out: {_misses(advice, advice.chosen.held_out)}."
    else:
        missed = _misses(advice, advice.chosen.searched)
        start = (
            f"No setting tried reaches the goal. The closest is recommended: {missed}; fewer "
            "requests per second, more workers or a wider limit would be needed."
        )
    if advice.runner_up is not None:
        start += (
            " What the search found best is no better than the default on what was held out, so the default is "
            "recommended."
        )
    return start


def _misses(advice: Recommendation, outcome: Outcome) -> str:
    """The limits that are missed, with the worst figure over the seeds."""
    missed = []
    for limit in advice.goal.limits:
        values = outcome.values(limit.measure.path)
        if max(map(limit.excess, values.tolist())) > 0.0:
            worst = np.min(values) if limit.measure.higher_is_better else np.max(values)
            missed.append(f"{limit.measure.label} {figure(float(worst))} against {limit.bound:g}")
    return ", ".join(missed)


def _gains(advice: Recommendation) -> str:
    """The figures of the goal on what was held out, against the default and join_shortest_queue."""
    others = [(advice.baseline, advice.baseline.candidate.policy)]
    if advice.chosen.candidate != advice.default.candidate:
        others.insert(0, (advice.default, "balanced"))
    parts = []
    for other, name in others:
        changes = [
            f"{measure.label} {_change(advice.chosen.held_out, other.held_out, measure)}"
            for measure in advice.goal.shown.values()
        ]
        parts.append(f"against {name} {', '.join(changes)}")
    return f"Held out, {'; '.join(parts)}."


def _change(mine: Outcome, theirs: Outcome, measure: Measure) -> str:
    ours, other = _mean(mine, measure.path), _mean(theirs, measure.path)
    if not (math.isfinite(ours) and math.isfinite(other) and other > 0):
        return f"{figure(ours)} to {figure(other)}"
    return percent(ours / other - 1.0)


def _mean(outcome: Outcome, path: str) -> float:
    return float(np.mean(outcome.values(path)))


def _cell(goal: Goal, outcome: Outcome, name: str) -> Text:
    """The mean over the seeds; in red where a limit is missed by any of them, in green where it holds."""
    path = goal.shown[name].path
    limits = [limit for limit in goal.limits if limit.name == name]
    missed = any(limit.excess(value) > 0.0 for limit in limits for value in outcome.values(path).tolist())
    return Text(figure(_mean(outcome, path)), style="" if not limits else "red" if missed else "green")
