"""Who may start now: the startable check, the safety check, and the rule on overtaking, for every central policy.

Startable: a free batch slot, free KV for the prompt and its first token, in whole blocks, and where iterations have a
token budget something left of it. Every open lease counts, also those that still wait inside the engine. Safe: at every
distance h from now the batch keeps E[KV](h) + z·sd[KV](h) ≤ C, with remaining lives from the survival functions; where
all lengths are known for certain the peaks are computed exactly instead. An empty device takes whatever is startable.

Overtaking: when the best request that waits can start nowhere, later ones may be taken past it, `max_skips`
times in all; then the devices that could ever hold it are kept for it until it starts, so it cannot be starved by
smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.queue import FloatArray, IntArray, WaitingQueue
from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies import admission_kernels as kernels
from bidroute.policies.admission_kernels import load_batches
from bidroute.policies.admission_walk_kernels import walk_rows
from bidroute.policies.base import Assignment, Hold

GRID_POINTS = 64
DEFAULT_RISK_Z = 2.6  # fewest preemptions for the least delay, with and without predictions
DEFAULT_MAX_SKIPS = 8  # most of what overtaking gains in the mean, before the tail pays for it
HOLD_BY_VERDICT = {
    kernels.NEVER_HERE: Hold.KV_FUTURE,
    kernels.NO_SLOT: Hold.SLOTS,
    kernels.NO_TOKENS: Hold.TOKENS,
    kernels.KV_NOW: Hold.KV_NOW,
    kernels.KV_FUTURE: Hold.KV_FUTURE,
    kernels.BEHIND: Hold.ORDER,
}


def distance_grid(horizon_tokens: int, points: int = GRID_POINTS) -> IntArray:
    """At most `points` distances in periods, rising from 0 to below the horizon: single steps, then geometric."""
    wanted = np.geomspace(1.0, max(horizon_tokens, 2), points)
    steps = np.arange(points)
    grid: IntArray = np.unique(np.maximum(np.floor(wanted).astype(np.int64), steps))
    return np.concatenate([[0], grid[(grid > 0) & (grid < horizon_tokens)]])[:points].astype(np.int64)


class Tables(NamedTuple):
    """The tables in `admission_kernels.View`, described there."""

    distance: IntArray
    growth: FloatArray
    residual: FloatArray
    residual_tokens: FloatArray
    age_index: IntArray


class ResidualTables:
    """P(still running h periods from now | age, class) on the grid, rebuilt when the length model has changed.

    `conservative` counts a request that is alive at a bucket's start with its size at the bucket's end, an upper
    bound between grid points; else with its size at the start.
    """

    def __init__(self, *, conservative: bool = False) -> None:
        self.conservative = conservative
        self._current: tuple[LengthModel, int, Tables] | None = None  # of which version; replaced whole, never changed

    def refresh(self, lengths: LengthModel) -> Tables:
        """The tables for this model as it is now. A decision and an update may call this from two threads at once: each
        fills tables of its own, and what is learned meanwhile is told by a version read before."""
        known, before, tables = self._current or (None, -1, None)
        if tables is None or known is not lengths:
            before, tables = -1, self._empty(lengths)
        version = lengths.version
        if before != version:
            changed = (lengths.changed_at > before).nonzero()[0]
            tables = tables._replace(residual=tables.residual.copy(), residual_tokens=tables.residual_tokens.copy())
            kernels.fill_residuals(lengths.survival, changed, tables.distance, tables.residual, tables.residual_tokens)
            self._current = lengths, version, tables
        return tables

    def _empty(self, lengths: LengthModel) -> Tables:
        distance = distance_grid(lengths.horizon_tokens)
        ends = np.append(distance[1:], lengths.horizon_tokens) - 1
        growth = (ends if self.conservative else distance).astype(np.float64)
        middles = np.sqrt((distance[:-1] + 1.0) * (distance[1:] + 1.0)) - 1.0
        age_index = np.searchsorted(middles, np.arange(lengths.horizon_tokens + 1), side="right").astype(np.int64)
        residual = np.zeros((lengths.classes, len(distance), len(distance)))
        return Tables(distance, growth, residual, np.ones(residual.shape[:2]), age_index)


@dataclass(frozen=True, slots=True)
class Walk:
    """What a greedy walk decided, by place in the order that was walked.

    `verdicts` int64[n] (`admission_kernels`: RELEASED, KV_NOW, …); `released` int64[k]: the places taken, and
    `devices` int64[k] where each goes; `skipped_row` is the queue row of the best one held while later ones were
    taken past it `skips` times (-1 and 0 when there is none).
    """

    verdicts: IntArray
    released: IntArray
    devices: IntArray
    skipped_row: int
    skips: int

    def assignments(self, ids: IntArray, rows: IntArray) -> list[Assignment]:
        """What was released, where `rows` is the order that was walked."""
        taken = ids[rows[self.released]].tolist()
        return [Assignment(request_id, device) for request_id, device in zip(taken, self.devices.tolist(), strict=True)]

    def held(self) -> dict[Hold, int]:
        """How many were held, by reason."""
        counts = np.bincount(self.verdicts, minlength=kernels.BEHIND + 1)
        held: dict[Hold, int] = {}
        for verdict, hold in HOLD_BY_VERDICT.items():
            if counts[verdict]:
                held[hold] = held.get(hold, 0) + int(counts[verdict])
        return held


class Admission:
    """Answers, for the devices of one decision, who may start. `begin` at each decision; then `walk` or single steps.

    `risk_z`: how many standard deviations of KV to keep free; `safety=False` leaves only the startable check.
    Devices are named by their position in the sequence given to `begin`.
    """

    def __init__(
        self,
        *,
        safety: bool = True,
        risk_z: float = DEFAULT_RISK_Z,
        max_skips: int = DEFAULT_MAX_SKIPS,
        conservative: bool = False,
    ) -> None:
        if not (math.isfinite(risk_z) and risk_z >= 0):
            raise ConfigError(f"risk_z={risk_z}; expected 0 or more standard deviations")
        if max_skips < 0:
            raise ConfigError(f"max_skips={max_skips}; expected 0 (strict order) or more")
        self.rule = (bool(safety), float(risk_z) ** 2, int(max_skips))
        self.residuals = ResidualTables(conservative=conservative)
        self._space = _Space()

    def begin(self, state: RoutingState, devices: Sequence[int] | IntArray) -> None:
        """Look at the batches of these devices as they are now; forgets what was added before."""
        tables, fleet = self.residuals.refresh(state.lengths), state.fleet
        pool, offered = fleet.pool, np.asarray(devices, dtype=np.int64)
        numbers, grids, peaks = self._space.load(fleet, offered, len(tables.distance))
        self._speed = fleet.speed
        self.view = kernels.View(pool.columns, pool.offset, pool.count, *tables, numbers, grids, peaks, *self.rule)

    @property
    def free_slots(self) -> IntArray:
        """Free batch slots by position, int64[D]."""
        free_slots: IntArray = self.view.numbers[:, kernels.FREE]
        return free_slots

    def judge(self, position: int, prompt_tokens: int, length_class: int, exact_tokens: int = 0) -> int:
        """The verdict on one candidate for the device at `position`: RELEASED when it may start there now."""
        return kernels.judge(self.view, position, prompt_tokens, length_class, exact_tokens)

    def add(self, position: int, prompt_tokens: int, length_class: int, exact_tokens: int = 0) -> None:
        """Count this candidate as started on the device at `position`."""
        kernels.add(self.view, position, prompt_tokens, length_class, exact_tokens)

    def walk(self, queue: WaitingQueue, order: IntArray) -> Walk:
        """Take queue rows in this order, int64[n], each to the least busy device that may take it."""
        columns = queue.prompt_tokens, queue.length_class, queue.exact_tokens, queue.skips
        out = np.empty((3, len(order)), dtype=np.int64)
        taken, best, skips = walk_rows(self.view, *columns, order, self._speed, out[0], out[1], out[2])
        return Walk(out[0], out[1, :taken], out[2, :taken], best, skips)


class _Space:
    """Arrays for the batches of one decision, kept between decisions; they only grow."""

    def __init__(self) -> None:
        self._numbers: IntArray = np.zeros((1, kernels.NUMBERS), dtype=np.int64)
        self._grids: FloatArray = np.zeros((2, 1, 1))
        self._peaks: IntArray = np.zeros((3, 1, 1), dtype=np.int64)

    def load(self, fleet: Fleet, devices: IntArray, points: int) -> tuple[IntArray, FloatArray, IntArray]:
        """`numbers` int64[D, NUMBERS], filled; `grids` float64[2, ≥D, points] and `peaks` int64[3, ≥D, ≥W], not."""
        n, pool = len(devices), fleet.pool
        if len(self._numbers) < n:
            self._numbers = np.zeros((n, kernels.NUMBERS), dtype=np.int64)
        numbers = self._numbers[:n]
        width = load_batches(pool.columns, pool.offset, pool.count, fleet.totals, devices, numbers)
        if self._grids.shape[1] < n or self._grids.shape[2] != points:
            self._grids = np.zeros((2, n, points))
        if self._peaks.shape[1] < n or self._peaks.shape[2] < width:
            self._peaks = np.zeros((3, n, width), dtype=np.int64)
        return numbers, self._grids, self._peaks
