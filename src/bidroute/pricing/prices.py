"""Shadow prices of batch slots, KV tokens and the tokens of iterations, tracked online by projected subgradient steps.

One step (docs/how-it-works.md): p ← max(0, p − η (d − Σ_i w_i a*_i(p))). The sum runs over a stratified sample of those
who compete for the horizon: requests drawn from the queue, each standing for |queue|/draws of them, and one
recent arrival per start offset, standing for the arrivals forecast until the next offset. Stratifying keeps the
expectation of drawing from both with probability |queue|/N and removes most of its variance: the queue, which sets the
prices of the next moments, is never missed because the horizon's arrivals outnumber it.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np

from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.state import RoutingState
from bidroute.pricing.columns import ClassColumns, class_columns
from bidroute.pricing.cost_kernels import Prices, costs_on_devices
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.price_kernels import (
    demand_at_prices,
    expected_use_of_devices,
    projected_step,
)

HORIZON_PERIODS = 32_000
BUCKETS = 20  # widths about double every second one; finer grids leave gaps that no sampled start fills
STEP = 0.03  # of the price scale, per step of size one rms
FORGET = 0.95  # of the running mean square of the excess, per step


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests sampled for a price update, by column, each [m]: what they are, what they are worth, how many
    requests each stands for (`weight`), and the periods from now before which it cannot start (`earliest`)."""

    prompt_tokens: IntArray
    length_class: IntArray
    exact_tokens: IntArray
    reward: FloatArray
    weight: FloatArray
    earliest: IntArray


class Costs(NamedTuple):
    """Costs by resource in reward units, and footprints in device-periods, each float64[D, n]."""

    slots: FloatArray
    kv: FloatArray
    tokens: FloatArray
    footprint: FloatArray


@dataclass(frozen=True, slots=True)
class PriceSnapshot:
    """The prices of a fleet at one moment, for reports and dashboards.

    `edges_periods` int64[buckets+1] are distances from now. `slot_price`, `kv_price` and `token_price`, float64[G,
    buckets], are in reward units for all of a device's slots (all its KV tokens, all the tokens of its iterations) over
    one period; divide by B_g (C_g, its token budget) for one. `token_price` is 0 without a budget, and None where a
    policy does not price it.
    """

    edges_periods: IntArray
    slot_price: FloatArray
    kv_price: FloatArray
    token_price: FloatArray | None = None


class _Rows(NamedTuple):
    """What `ShadowPrices` holds of the first G devices, float64[G, buckets] each, shared with it."""

    slot_price: FloatArray
    kv_price: FloatArray
    token_price: FloatArray
    slots_left: FloatArray
    kv_left: FloatArray
    tokens_left: FloatArray
    slot_square: FloatArray
    kv_square: FloatArray
    token_square: FloatArray


class ShadowPrices:
    """Prices of every device's slots, KV and iterations over a time grid; warm-started from update to update.

    `slot_price`, `kv_price`, `token_price`: float64[G, buckets], in reward units for all of a device's slots (all its
    KV tokens, its token budget) over one period of the bucket; divide by B_g (C_g, the budget) for one slot (one
    token). Devices without a budget have no third row: `token_price` stays 0. `step`: how far an update moves a price,
    as a share of the price scale.
    """

    def __init__(self, grid: TimeGrid | None = None, step: float = STEP) -> None:
        self._step = step
        self.grid = grid or TimeGrid.geometric(HORIZON_PERIODS, BUCKETS)
        self.starts_periods = self.grid.edges_periods[:-1].copy()
        self.slot_price: FloatArray = np.zeros((0, self.grid.buckets))
        self.kv_price: FloatArray = np.zeros((0, self.grid.buckets))
        self.token_price: FloatArray = np.zeros((0, self.grid.buckets))
        self.slots_left: FloatArray = np.zeros((0, self.grid.buckets))
        self.kv_left: FloatArray = np.zeros((0, self.grid.buckets))
        self.tokens_left: FloatArray = np.zeros((0, self.grid.buckets))
        self._slot_square: FloatArray = np.zeros((0, self.grid.buckets))
        self._kv_square: FloatArray = np.zeros((0, self.grid.buckets))
        self._token_square: FloatArray = np.zeros((0, self.grid.buckets))
        self._fitting = Lock()  # the host's thread and an update beside it may both meet a new device first
        self._columns: ClassColumns | None = None
        self._learned_from: LengthModel | None = None

    def columns(self, lengths: LengthModel) -> ClassColumns:
        """The class columns for the current state of the length model."""
        if self._columns is None or self._learned_from is not lengths:
            self._columns = class_columns(lengths, self.grid, self.starts_periods)
            self._learned_from = lengths
        elif self._columns.version != lengths.version:
            self._columns = class_columns(lengths, self.grid, self.starts_periods, self._columns)
        return self._columns

    def refresh_capacity(self, fleet: Fleet, lengths: LengthModel, devices: IntArray) -> None:
        """Recompute what the open leases of `devices` leave free in each bucket, as a fraction of capacity."""
        rows, pool = self._rows(len(fleet)), fleet.pool
        expected_use_of_devices(
            pool.columns,
            pool.offset,
            pool.count,
            devices,
            fleet.batch_slots,
            fleet.kv_tokens,
            fleet.token_budget,
            lengths.survival,
            self.grid.edges_periods,
            rows.slots_left,
            rows.kv_left,
            rows.tokens_left,
        )

    def step(
        self, fleet: Fleet, lengths: LengthModel, sample: Sample, devices: IntArray, decay_s: float, price_scale: float
    ) -> None:
        """One projected subgradient step for the fleet; `devices` are those that take requests.

        A sample's reward at a start falls with its completion time as decay_s/(decay_s + completion).
        """
        rows, columns = self._rows(len(fleet)), self.columns(lengths)
        slot_demand, kv_demand, token_demand = np.empty((3, *rows.slot_price.shape))
        demand_at_prices(
            rows.slot_price,
            rows.kv_price,
            rows.token_price,
            fleet.batch_slots,
            fleet.kv_tokens,
            fleet.token_budget,
            fleet.open_leases,
            fleet.period_s,
            devices,
            self.grid.edges_periods,
            self.starts_periods,
            columns.slots,
            columns.growth,
            columns.mean_tokens,
            sample.prompt_tokens,
            sample.length_class,
            sample.exact_tokens,
            sample.reward,
            sample.weight,
            sample.earliest,
            decay_s,
            slot_demand,
            kv_demand,
            token_demand,
        )
        step = self._step * price_scale
        projected_step(rows.slot_price, rows.slot_square, slot_demand, rows.slots_left, step, FORGET)
        projected_step(rows.kv_price, rows.kv_square, kv_demand, rows.kv_left, step, FORGET)
        if fleet.token_budget.any():
            projected_step(rows.token_price, rows.token_square, token_demand, rows.tokens_left, step, FORGET)

    def price_scale(self, fleet: Fleet, lengths: LengthModel, sample: Sample, devices: IntArray) -> float:
        """The scale of prices: the sample's reward over the device-periods it takes."""
        columns, exact = self.columns(lengths), sample.exact_tokens
        tokens = np.where(exact > 0, exact, columns.mean_tokens[sample.length_class])
        growth = np.where(exact > 0, exact * (exact + 1) / 2, columns.mean_growth[sample.length_class])
        slots, kv = (float(capacity[devices].sum()) / len(devices) for capacity in (fleet.batch_slots, fleet.kv_tokens))
        share = tokens / slots + (sample.prompt_tokens * tokens + growth) / kv
        if fleet.token_budget.any():
            budget = np.count_nonzero(fleet.token_budget[devices]) / max(int(fleet.token_budget[devices].sum()), 1)
            share = share + (sample.prompt_tokens + tokens) * budget
        return float(sample.reward.sum() / share.sum())

    def view(self, state: RoutingState) -> Prices:
        """The prices as kernels read them; `slot_price` and `kv_price` are the arrays themselves."""
        fleet, columns = state.fleet, self.columns(state.lengths)
        if len(self.tokens_left) < len(fleet):  # the last of the arrays to become longer
            self.fit_fleet(len(fleet))
        return Prices(
            self.slot_price,
            self.kv_price,
            self.token_price,
            fleet.batch_slots,
            fleet.kv_tokens,
            fleet.token_budget,
            fleet.open_leases,
            self.grid.edges_periods,
            columns.starting_now_slots,
            columns.starting_now_growth,
        )

    def costs(self, state: RoutingState, devices: IntArray) -> Costs:
        """What starting each waiting request on each of `devices` now would cost."""
        queue = state.queue
        costs = Costs(*np.empty((4, len(devices), len(queue))))
        columns = queue.prompt_tokens, queue.length_class, queue.exact_tokens
        costs_on_devices(self.view(state), devices, *columns, *costs)
        return costs

    def fit_fleet(self, devices: int) -> None:
        """Give devices that joined a row: free of charge, all capacity left, until the next update."""
        with self._fitting:
            self._fit(devices - len(self.slot_price))

    def _rows(self, devices: int) -> _Rows:
        """The rows of the first `devices` in all arrays. An update beside the host's thread steps a frozen fleet, which
        may lack a device that has joined since: kernels must find all arrays as long as the fleet they are given."""
        with self._fitting:
            self._fit(devices - len(self.slot_price))
            return _Rows(
                self.slot_price[:devices],
                self.kv_price[:devices],
                self.token_price[:devices],
                self.slots_left[:devices],
                self.kv_left[:devices],
                self.tokens_left[:devices],
                self._slot_square[:devices],
                self._kv_square[:devices],
                self._token_square[:devices],
            )

    def _fit(self, missing: int) -> None:
        if missing <= 0:
            return
        for name in ("slot_price", "kv_price", "token_price", "_slot_square", "_kv_square", "_token_square"):
            setattr(self, name, np.vstack([getattr(self, name), np.zeros((missing, self.grid.buckets))]))
        for name in ("slots_left", "kv_left", "tokens_left"):
            setattr(self, name, np.vstack([getattr(self, name), np.ones((missing, self.grid.buckets))]))

    def snapshot(self) -> PriceSnapshot:
        """Prices as they stand: of all of a device's slots, of all its KV, and of its token budget, per period."""
        prices = self.slot_price.copy(), self.kv_price.copy(), self.token_price.copy()
        return PriceSnapshot(self.grid.edges_periods, *prices)
