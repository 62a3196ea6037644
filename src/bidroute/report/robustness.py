"""The cases of robustness as a terminal table, sentences and data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bidroute.experiments.describe import finite
from bidroute.experiments.measures import MEASURES
from bidroute.experiments.robustness import GUARDED, REFERENCE, CaseResult, failures
from bidroute.experiments.verdict import SUBJECT, TIE, Change
from bidroute.report.numbers import figure, percent

SHORT_NAMES = {
    "join_shortest_queue": "jsq",
    "weighted_least_connections": "wlc",
    "least_predicted_work": "lpw",
    "least_footprint+safety+ageing": "lf+safety+ageing",
}


def robustness_table(results: Sequence[CaseResult]) -> Table:
    """One row per case: bid_price's E2E mean and p99, against join-shortest-queue and the strongest of the others."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("case", no_wrap=True)
    for head in ("E2E\nmean, s", "against\njsq", "E2E\np99, s", "against\njsq"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("strongest\nother", no_wrap=True)
    for head in ("mean", "p99"):
        table.add_column(f"against\nit, {head}", justify="right", no_wrap=True)
    group = ""
    for result in results:
        if result.case.group != group:
            group = result.case.group
            table.add_row(Text(group, style="dim"))
        cells: list[Text] = []
        for measure in GUARDED:
            cells += [
                Text(figure(result.runs.spread(SUBJECT, measure.path).median)),
                _change_cell(result.against(REFERENCE, measure)),
            ]
        strongest = result.strongest
        others = [_change_cell(result.against(strongest, measure)) for measure in GUARDED]
        table.add_row(f"  {result.case.name}", *cells, SHORT_NAMES.get(strongest, strongest), *others)
    return table


def _change_cell(change: Change) -> Text:
    """A relative change with half of its range over seeds, green or red where it is more than a tie."""
    if not math.isfinite(change.relative):
        return Text("–")
    half = 100.0 * (change.high - change.low) / 2.0
    text = percent(change.relative).replace("\N{NO-BREAK SPACE}", "")
    style = "" if abs(change.relative) < TIE else ("green" if change.relative < 0 else "bold red")
    cell = Text(text, style=style)
    if half >= 0.5:
        cell.append(f"±{half:.0f}", style="not bold bright_black")
    return cell


def failure_sentences(results: Sequence[CaseResult]) -> list[str]:
    """Where the default falls below join-shortest-queue, a sentence each; one that says so where it never does."""
    found = failures(results)
    if not found:
        return [f"{SUBJECT} is nowhere below {REFERENCE} on E2E mean or p99, in {len(results)} cases."]
    lines = [f"{SUBJECT} falls below {REFERENCE} in {len(found)} of {2 * len(results)} figures:"]
    for result, change in found:
        seeds = "every seed agrees" if change.outcome < 0 else "not in every seed"
        text = percent(change.relative).replace("\N{NO-BREAK SPACE}", " ")
        lines.append(f"  {result.case.name} ({result.trace}): {change.measure.label} {text}, {seeds}")
    return lines


def robustness_data(results: Sequence[CaseResult]) -> dict[str, Any]:
    """The JSON document: every case with its changes and runs, and where the default falls below."""
    return {
        "subject": SUBJECT,
        "reference": REFERENCE,
        "cases": [_case_data(result) for result in results],
        "below": [
            {"case": result.case.name, "trace": result.trace, **_change_data(change)}
            for result, change in failures(results)
        ],
    }


def _case_data(result: CaseResult) -> dict[str, Any]:
    case, strongest = result.case, result.strongest
    return {
        "case": case.name,
        "group": case.group,
        "trace": result.trace,
        "requests": result.requests,
        "lengths": case.lengths,
        "bias": case.bias,
        "load": case.load,
        "against_reference": [_change_data(result.against(REFERENCE, measure)) for measure in MEASURES],
        "strongest": strongest,
        "against_strongest": [_change_data(result.against(strongest, measure)) for measure in MEASURES],
        "runs": [{"policy": run.policy, "seed": run.seed, **run.row} for run in result.runs.results],
    }


def _change_data(change: Change) -> dict[str, Any]:
    return {
        "measure": change.measure.path,
        "relative": finite(change.relative),
        "low": finite(change.low),
        "high": finite(change.high),
        "outcome": change.outcome,
    }
