"""The comparison as a terminal table that fits 100 columns."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from bidroute.experiments.measures import Measure
from bidroute.experiments.results import Comparison
from bidroute.experiments.verdict import SUBJECT, score
from bidroute.report.numbers import figure, spread_figure

SPREAD_WIDTH = 96  # narrower terminals see the medians only
NAME_WIDTH = 12  # what is left of a policy's name at least


def comparison_table(comparison: Comparison, width: int = 100) -> Table:
    """One row per policy, best latency first; the best figure of a column in bold, ± half the range over seeds."""
    measures = comparison.measures
    columns = [_column(comparison, measure, show_spread=width >= SPREAD_WIDTH) for measure in measures]
    heads = [max(map(len, measure.head.split("\n"))) for measure in measures]
    taken = sum(max(head, *map(len, cells.values())) + 1 for head, cells in zip(heads, columns, strict=True))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("policy", no_wrap=True, overflow="ellipsis", max_width=max(NAME_WIDTH, width - taken - 1))
    for measure in measures:
        table.add_column(measure.head, justify="right", no_wrap=True)
    for policy in ranked(comparison):
        name = Text(policy, style="bold cyan" if policy == SUBJECT else "")
        table.add_row(name, *(cells[policy] for cells in columns))
    return table


def ranked(comparison: Comparison) -> list[str]:
    """The policies, best latency first."""
    return sorted(comparison.policies, key=lambda policy: score(comparison, policy))


def best_policies(comparison: Comparison, measure: Measure) -> set[str]:
    """The policies whose figure reads as the best in this measure; none where all read alike."""
    medians = {policy: comparison.spread(policy, measure.path).median for policy in comparison.policies}
    finite = [value for value in medians.values() if math.isfinite(value)]
    if not finite or figure(min(finite)) == figure(max(finite)):
        return set()
    top = max(finite) if measure.higher_is_better else min(finite)
    return {policy for policy, value in medians.items() if figure(value) == figure(top)}


def _column(comparison: Comparison, measure: Measure, *, show_spread: bool) -> dict[str, Text]:
    """A cell for every policy: the median, and in dim type the spread."""
    best = best_policies(comparison, measure)
    cells = {}
    for policy in comparison.policies:
        spread = comparison.spread(policy, measure.path)
        cell = Text(figure(spread.median), style="bold green" if policy in best else "")
        if show_spread:
            cell.append(spread_figure(spread), style="not bold bright_black")
        cells[policy] = cell
    return cells
