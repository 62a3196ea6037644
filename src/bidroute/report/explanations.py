"""One request's decisions, as a terminal table and as JSON data."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from itertools import groupby, pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from bidroute.experiments.explaining import ExplainedRequest
from bidroute.policies import Explanation
from bidroute.report.numbers import MISSING, figure

MAX_NAMED = 4  # requests named in "taken instead" before the rest is counted
MAX_ROWS = 16  # of the terminal table, the release included
SMALLEST_SHOWN = 5e-4  # terms below this in size are left out of the table


def explanation_sentence(explained: ExplainedRequest) -> str:
    """Who it is and what became of it."""
    predicted = explained.predicted_tokens
    hint = f" (predicted {predicted:.0f})" if predicted is not None else ""
    start = (
        f"request {explained.request_id} ({explained.chosen}) under {explained.policy}, seed {explained.seed}: "
        f"{explained.prompt_tokens} prompt and {explained.output_tokens} output tokens{hint}, "
        f"arrived at {explained.arrival_s:.3f} s"
    )
    if explained.held_s is None:
        return f"{start}, {explained.outcome}."
    held = f"held {explained.held_s:.3f} s, started on device {explained.device}"
    end = "" if explained.end_s is None else f", finished {explained.end_s - explained.arrival_s:.3f} s after arrival"
    times = f", preempted {explained.preemptions} times" if explained.preemptions else ""
    return f"{start}, {held}{end}{times}."


def explanation_table(explained: ExplainedRequest) -> Table:
    """One row per run of decisions with the same outcome: reward by term, price by resource, what held it."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("waited, s", "decisions", "rank", "reward", "price", "value"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome", style="bold")
    table.add_column("taken instead")
    for run in like_decisions(explained.epochs):
        table.add_row(*_cells(run))
    return table


def like_decisions(epochs: list[Explanation]) -> list[list[Explanation]]:
    """Neighbouring decisions with the same outcome, together.

    Where the outcome flips to and fro, the shorter runs join the one before them until few rows are left.
    """
    if any(first.now_s == second.now_s for first, second in pairwise(epochs)):
        return [[one] for one in epochs]  # one decision that compares devices: each has its own row
    runs = [list(run) for _, run in groupby(epochs, key=lambda one: one.held_by)]
    short = 1
    while len(runs) > MAX_ROWS:
        short *= 2
        runs = _merged(runs, short)
    return runs


def _merged(runs: list[list[Explanation]], short: int) -> list[list[Explanation]]:
    """Runs below `short` decisions joined to the one before; a release stays alone."""
    merged: list[list[Explanation]] = []
    for run in runs:
        released = run[-1].held_by is None
        if merged and len(run) < short and not released and merged[-1][-1].held_by is not None:
            merged[-1] = merged[-1] + run
        else:
            merged.append(run)
    return merged


def explanation_data(explained: ExplainedRequest) -> dict[str, Any]:
    """The JSON document: `scenario`, `request`, and `epochs`, one per decision."""
    data = asdict(explained)
    scenario, epochs = data.pop("scenario"), data.pop("epochs")
    plain = [{**epoch, "held_by": None if epoch["held_by"] is None else str(epoch["held_by"])} for epoch in epochs]
    return {"scenario": scenario, "request": data, "epochs": _without_nan(plain)}


def _cells(run: list[Explanation]) -> list[Text | str]:
    first, last = run[0], run[-1]
    span = [f"{first.wait_s:.3f}"] if len(run) == 1 else [f"{first.wait_s:.3f}", f"{last.wait_s:.3f}"]
    reward, price = _terms(first.reward, last.reward), _terms(first.price, last.price)
    return [
        " to ".join(span),
        str(len(run)),
        f"{_range(first.rank + 1, last.rank + 1)} of {last.waiting}",
        reward,
        price,
        _change(first.value, last.value) if reward != MISSING or price != MISSING else MISSING,
        _outcome(run),
        _instead(run),
    ]


def _outcome(run: list[Explanation]) -> Text:
    """What happened; for a mixed run, how often each reason held."""
    counts = Counter(one.held_by for one in run)
    if None in counts:
        return Text(f"released to {run[-1].device}", style="green")
    if len(counts) == 1:
        return Text(f"held: {run[-1].held_by}", style="yellow")
    mixed = ", ".join(f"{reason} {count}×" for reason, count in counts.most_common())
    return Text(f"held: {mixed}", style="yellow")


def _terms(first: dict[str, float], last: dict[str, float]) -> str:
    """Every term on its own line, as it was and as it became."""
    names = [name for name in last if max(abs(first.get(name, 0.0)), abs(last[name])) >= SMALLEST_SHOWN]
    return "\n".join(f"{name} {_change(first.get(name, math.nan), last[name])}" for name in names) or MISSING


def _change(first: float, last: float) -> str:
    before, after = figure(first), figure(last)
    return after if before == after else f"{before} → {after}"


def _range(first: int, last: int) -> str:
    return str(last) if first == last else f"{first} → {last}"


def _instead(run: list[Explanation]) -> str:
    taken = [request_id for one in run for request_id in one.instead]
    if not taken:
        return ""
    named = ", ".join(map(str, taken[:MAX_NAMED]))
    return named if len(taken) <= MAX_NAMED else f"{named} and {len(taken) - MAX_NAMED} more"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
