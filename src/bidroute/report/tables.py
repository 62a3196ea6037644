"""The comparison as a terminal table that fits 100 columns."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from bidroute.experiments.measures import MEASURES, Measure
from bidroute.experiments.results import Comparison
from bidroute.experiments.verdict import SUBJECT, score
from bidroute.report.numbers import with_spread

SPREAD_WIDTH = 96  # narrower terminals see the medians only


def comparison_table(comparison: Comparison, width: int = 100) -> Table:
    """One row per policy, best latency first; the best figure of a column in bold, ± half the range over seeds."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("policy", no_wrap=True, overflow="ellipsis", max_width=27)
    for measure in MEASURES:
        table.add_column(f"{measure.label}{', s' if measure.unit else ''}", justify="right", no_wrap=True)
    winners = {measure.label: best_policies(comparison, measure) for measure in MEASURES}
    for policy in ranked(comparison):
        cells = [Text(policy, style="bold cyan" if policy == SUBJECT else "")]
        for measure in MEASURES:
            text = with_spread(comparison.spread(policy, measure.path), show_spread=width >= SPREAD_WIDTH)
            cells.append(Text(text, style="bold green" if policy in winners[measure.label] else ""))
        table.add_row(*cells)
    return table


def ranked(comparison: Comparison) -> list[str]:
    """The policies, best latency first."""
    return sorted(comparison.policies, key=lambda policy: score(comparison, policy))


def best_policies(comparison: Comparison, measure: Measure) -> set[str]:
    """The policies with the best median in this measure; none where all are equal."""
    medians = {policy: comparison.spread(policy, measure.path).median for policy in comparison.policies}
    finite = [value for value in medians.values() if math.isfinite(value)]
    if not finite or min(finite) == max(finite):
        return set()
    top = max(finite) if measure.higher_is_better else min(finite)
    return {policy for policy, value in medians.items() if value == top}
