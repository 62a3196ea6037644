"""What candidates reached, and which of them nothing else beats on everything: the front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.experiments.frontier.candidates import Candidate
from bidroute.experiments.measures import MEASURES, Measure
from bidroute.experiments.results import Row, Spread, figure_of

_BY_PATH = {measure.path: measure for measure in MEASURES}
FRONT_MEASURES = tuple(
    _BY_PATH[path] for path in ("e2e_s.mean", "e2e_s.p99", "ttft_s.p99", "output_tokens_per_s", "goodput")
)
SHOWN_MEASURES = tuple(measure for measure in MEASURES if measure.path != "preemptions")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A candidate and its figures, one row per seed, in the order of the seeds."""

    candidate: Candidate
    rows: tuple[Row, ...]

    def values(self, path: str) -> FloatArray:
        """A figure by its dotted path over the seeds, float64[seeds]; NaN where a run has none."""
        return np.array([figure_of(row, path) for row in self.rows])

    def median(self, path: str) -> float:
        """The median of a figure over the seeds."""
        return self.spread(path).median

    def spread(self, path: str) -> Spread:
        """Median and half of the range over the seeds."""
        return Spread.of(self.values(path))


def costs(outcomes: Sequence[Outcome], measures: Sequence[Measure] = FRONT_MEASURES) -> FloatArray:
    """Medians as costs (lower is better in every column; infinite where there is none), float64[outcomes, measures]."""
    signs = [-1.0 if measure.higher_is_better else 1.0 for measure in measures]
    table = np.array([[one.median(measure.path) for measure in measures] for one in outcomes])
    table = table.reshape(len(outcomes), len(measures)) * signs
    return np.where(np.isnan(table), np.inf, table)


def dominators(cost: FloatArray) -> list[int | None]:
    """For every row the first one that is as good on everything and better on something; None on the front."""
    found: list[int | None] = []
    for row in cost:
        beats = np.all(cost <= row, axis=1) & np.any(cost < row, axis=1)
        found.append(int(np.argmax(beats)) if beats.any() else None)
    return found


def spread_out(cost: FloatArray, count: int) -> list[int]:
    """At most `count` rows that show what there is, ascending by the first column; none that equals another.

    The best of every column, then always the row farthest from those taken, columns scaled to their range.
    """
    low, high = cost.min(axis=0), cost.max(axis=0)
    scaled = (cost - low) / np.where(high > low, high - low, 1.0)
    best = {scaled[row].tobytes(): row for row in (int(np.argmin(column)) for column in scaled.T)}
    chosen = list(best.values())[:count]
    while len(chosen) < min(count, len(cost)):
        gaps = np.linalg.norm(scaled[:, None, :] - scaled[None, chosen, :], axis=2).min(axis=1)
        if not gaps.max() > 0.0:
            break
        chosen.append(int(np.argmax(gaps)))
    return sorted(chosen, key=lambda row: tuple(cost[row]))
