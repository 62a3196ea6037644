"""Columns of the linear program by length class: what a request of a class is expected to occupy, and when.

For a class with survival S, a request that starts u periods from now is expected to occupy, over the periods
of bucket b (docs/how-it-works.md),

    slots[c, u, b] = Σ_{k∈b, k≥u} S(k−u)                    slot-periods
    growth[c, u, b] = Σ_{k∈b, k≥u} S(k−u)·(k−u+1)           token-periods, on top of prompt_tokens · slots

so its price is α + prompt_tokens·β with two table look-ups. What lies beyond the horizon counts in the last bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.core.lengths import LengthModel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.pricing.column_kernels import running_sums
from bidroute.pricing.grid import TimeGrid


@dataclass(frozen=True, slots=True)
class ClassColumns:
    """Expected occupancy by class: `slots` and `growth` float64[classes, starts, buckets], for each of the
    `starts_periods` int64[starts] (the first is 0); `mean_tokens` and `mean_growth` float64[classes] are the
    sums over all buckets for a start now, and `starting_now_*` float64[classes, buckets] its columns.
    """

    version: int
    starts_periods: IntArray
    slots: FloatArray
    growth: FloatArray
    mean_tokens: FloatArray
    mean_growth: FloatArray
    starting_now_slots: FloatArray
    starting_now_growth: FloatArray


def class_columns(
    lengths: LengthModel, grid: TimeGrid, starts_periods: IntArray, before: ClassColumns | None = None
) -> ClassColumns:
    """Tabulate the columns of every class of `lengths` on `grid` for each start.

    `before` are the columns of an earlier version of the same model on the same grid: what has not changed since is
    taken from there.
    """
    version = lengths.version  # read first: what another thread learns meanwhile is tabulated the next time
    changed = np.arange(lengths.classes) if before is None else (lengths.changed_at > before.version).nonzero()[0]
    tokens, growth = np.empty((2, len(changed), lengths.survival.shape[1] + 1))
    running_sums(lengths.survival[changed], tokens, growth)
    last = tokens.shape[1] - 1
    edges = grid.edges_periods.copy()
    # everything after the last edge belongs to the last bucket
    since_start = edges[None, :] - starts_periods[:, None]
    since_start[:, -1] = last
    since_start = np.clip(since_start, 0, last)
    tables = [np.diff(tokens[:, since_start], axis=2), np.diff(growth[:, since_start], axis=2)]
    tables += [tokens[:, -1], growth[:, -1]]
    if before is not None:
        earlier = before.slots, before.growth, before.mean_tokens, before.mean_growth
        tables = [_with_rows(old, changed, new) for old, new in zip(earlier, tables, strict=True)]
    slots, growth, mean_tokens, mean_growth = (np.ascontiguousarray(table) for table in tables)
    return ClassColumns(
        version=version,
        starts_periods=starts_periods,
        slots=slots,
        growth=growth,
        mean_tokens=mean_tokens,
        mean_growth=mean_growth,
        starting_now_slots=slots[:, 0].copy(),
        starting_now_growth=growth[:, 0].copy(),
    )


def _with_rows(table: FloatArray, at: IntArray, rows: FloatArray) -> FloatArray:
    """A copy of the table with new `rows` at these places."""
    result = table.copy()
    result[at] = rows
    return result
