"""Exact prices of a sample: the linear program that the first-order steps descend, solved by HiGHS at once.

It is the problem of `ShadowPrices.step`: sampled requests, each standing for `weight` of them, choose a device and a
start on the time grid, and the capacity left bounds what they occupy in each bucket. Its row duals are the prices. Rows
number 2 × devices × buckets, so its size does not depend on how many periods the grid spans; where devices process
prompts under a token budget (docs/mixed.md), 3 × as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.pricing.columns import ClassColumns
from bidroute.pricing.exact_lp import load_highspy, quiet_solver
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.price_kernels import mixed_columns
from bidroute.pricing.prices import Sample

# Of a device's capacity, what is taken to be left where nothing is. The price of a row that has no room at all could be
# anything above some level; that of a little room is what the best use of it is worth.
LEAST_LEFT = 1e-3
LEAST_USE = 1e-6  # of a device: less upsets the solver
GAP = 1e-6  # of the optimum, within which the prices are taken as optimal
MOST_ROUNDS = 100
DIGITS = 9  # to which rewards and room are rounded, so that no rounding error decides between optima that are equal
PRIMAL_SIMPLEX = 4


class Devices(NamedTuple):
    """D devices and the three resources that are priced: slots, KV, and the tokens of iterations.

    `left` float64[3, D, b], fractions of `capacity` int64[3, D], which is 0 in the last row for devices without a
    budget; `chunk_tokens` int64[D], of a prompt in each period where there is one; `period_s` float64[D].
    """

    left: FloatArray
    capacity: IntArray
    chunk_tokens: IntArray
    period_s: FloatArray

    @property
    def resources(self) -> int:
        """How many resources have rows: the third only where some device has a budget."""
        return 3 if self.capacity[2].any() else 2

    def at(self, places: IntArray) -> Devices:
        """The devices at these places, int64[D]."""
        left, capacity, chunk_tokens, period_s = self
        return Devices(left[:, places], capacity[:, places], chunk_tokens[places], period_s[places])


@dataclass(frozen=True, slots=True)
class Columns:
    """The starts that a sample may choose, one row per column: `request` and `device` int64[c], the `reward` of one
    request there float64[c], and its `use` of the device, float64[c, resources, b], in fractions of each capacity."""

    request: IntArray
    device: IntArray
    reward: FloatArray
    use: FloatArray


def exact_prices(
    devices: Devices,
    grid: TimeGrid,
    classes: ClassColumns,
    sample: Sample,
    decay_s: float,
    price_scale: float,
    guess: FloatArray,
) -> FloatArray | None:
    """Optimal prices of all three resources, float64[3, D, b], in the units of `ShadowPrices`; None without an optimum.

    A sample's reward at a start falls with its completion time as decay_s/(decay_s + completion); `price_scale` > 0
    is the unit in which rewards are counted meanwhile; the nearer the `guess`, of the same shape, is to the prices, the
    sooner these are found. The third price is 0 without a budget. Devices alike get equal prices, and the order of
    devices does not matter. Raises ConfigError where highspy is missing.
    """
    order = np.lexsort(_described(devices).T[::-1])
    in_order, resources = devices.at(order), devices.resources
    columns = columns_of(in_order, grid, classes, sample, decay_s)
    per_bucket = grid.widths_periods / price_scale
    dual = _capacity_duals(in_order, columns, sample.weight, price_scale, guess[:resources, order] * per_bucket)
    if dual is None:
        return None
    _level_alike(_described(in_order), dual)
    price = np.zeros(devices.left.shape)
    price[:resources, order] = dual / per_bucket
    return price


def columns_of(devices: Devices, grid: TimeGrid, classes: ClassColumns, sample: Sample, decay_s: float) -> Columns:
    """All columns of a sample: every start from the request's earliest on, on every device that could hold it."""
    exact = sample.exact_tokens
    tokens = np.where(exact > 0, exact, classes.mean_tokens[sample.length_class])
    may = classes.starts_periods[None, :] >= sample.earliest[:, None]
    fits = sample.prompt_tokens[:, None] + 1 <= devices.capacity[1][None, :]
    request, device, start = np.nonzero(fits[:, :, None] & may[:, None, :])
    use, prefill = _use(devices, grid, classes, sample, request, device, start)
    delay = classes.starts_periods[start] - sample.earliest[request]
    completion_s = (delay + tokens[request] + prefill) * devices.period_s[device]
    return Columns(request, device, sample.reward[request] * decay_s / (decay_s + completion_s), use)


def _use(
    devices: Devices,
    grid: TimeGrid,
    classes: ClassColumns,
    sample: Sample,
    request: IntArray,
    device: IntArray,
    start: IntArray,
) -> tuple[FloatArray, IntArray]:
    """What each column occupies, float64[c, resources, b], and the periods that its prompt delays its first token by,
    int64[c]: 0 where the device has no token budget."""
    slots, growth = _held(grid, classes, sample)
    use = np.zeros((len(request), devices.resources, grid.buckets))
    prefill = np.zeros(len(request), dtype=np.int64)
    use[:, 0] = slots[request, start]
    use[:, 1] = sample.prompt_tokens[request, None] * use[:, 0] + growth[request, start]
    if devices.resources > 2:
        mixed_columns(
            request,
            device,
            start,
            devices.capacity[2],
            devices.chunk_tokens,
            sample.prompt_tokens,
            sample.length_class,
            sample.exact_tokens,
            classes.slots,
            classes.growth,
            classes.starts_periods,
            grid.edges_periods,
            use,
            prefill,
        )
    capacity = np.maximum(devices.capacity[: devices.resources, device].T, 1)  # where there is no budget, none is used
    use /= capacity[:, :, None] * grid.widths_periods
    return use, prefill


def _held(grid: TimeGrid, classes: ClassColumns, sample: Sample) -> tuple[FloatArray, FloatArray]:
    """Slot-periods, and token-periods on top of the prompt's, by sampled request, start and bucket; [m, u, b] each."""
    slots, growth = classes.slots[sample.length_class], classes.growth[sample.length_class]
    known = np.flatnonzero(sample.exact_tokens > 0)
    if len(known):
        length = sample.exact_tokens[known, None, None].astype(np.float64)
        edges = grid.edges_periods.astype(np.float64)
        edges[-1] = np.inf  # what lies beyond the horizon counts in the last bucket
        age = np.clip(edges[None, None, :] - classes.starts_periods[None, :, None], 0.0, length)
        slots[known], growth[known] = np.diff(age, axis=2), np.diff(0.5 * age * (age + 1.0), axis=2)
    return slots, growth


def _described(devices: Devices) -> FloatArray:
    """One row per device with all that the program knows of it."""
    own = np.column_stack([devices.capacity.T, devices.chunk_tokens, devices.period_s])
    return np.round(np.hstack([own, *devices.left[: devices.resources]]), DIGITS)


def _level_alike(described: FloatArray, dual: FloatArray) -> None:
    """Give devices with equal rows the mean of their prices, which is optimal too, as the optima are convex."""
    first = 0
    for last in range(1, len(described) + 1):
        if last == len(described) or not np.array_equal(described[first], described[last]):
            dual[:, first:last] = dual[:, first:last].mean(axis=1, keepdims=True)
            first = last


def _capacity_duals(
    devices: Devices, columns: Columns, weight: FloatArray, scale: float, guess: FloatArray
) -> FloatArray | None:
    """The duals of the capacity rows in units of `scale`, float64[resources, D, b]: of a whole device for all of a
    bucket.

    By column generation: of thousands of starts few are ever taken. What the best missing ones would add bounds the
    optimum (weak duality), so it ends when that is next to nothing.
    """
    reward = np.round(columns.reward / scale, DIGITS)
    use = np.where(columns.use < LEAST_USE, 0.0, columns.use)
    master = _Master(devices, weight)
    of_requests, price = np.zeros(len(weight)), guess
    for added in range(MOST_ROUNDS):
        gain = reward - of_requests[columns.request]
        for resource in range(devices.resources):
            gain -= np.einsum("cb,cb->c", use[:, resource], price[resource, columns.device])
        chosen = _best_of_each(np.round(gain, DIGITS), columns)
        missed = np.zeros(len(weight))
        np.maximum.at(missed, columns.request[chosen], gain[chosen])
        if added and weight @ missed <= GAP * master.value:
            break
        if len(chosen):  # else the guess was too high for anybody, and it begins from prices of 0
            master.add(reward[chosen], columns.request[chosen], columns.device[chosen], use[chosen])
            if not master.solve():
                return None
        of_requests, price = master.request_price, master.price
    return master.price


def _best_of_each(gain: FloatArray, columns: Columns) -> IntArray:
    """The column of most gain for each request on each device, where there is any gain."""
    order = np.lexsort((-gain, columns.device, columns.request))
    pair = np.stack([columns.request[order], columns.device[order]])
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = np.any(pair[:, 1:] != pair[:, :-1], axis=0)
    best = order[first]
    return best[gain[best] > 0.0]


class _Master:
    """The program with the columns added so far; solving it again goes on from the last basis.

    `value` of its optimum, `request_price` float64[m], `price` float64[resources, D, b]: its duals.
    """

    def __init__(self, devices: Devices, weight: FloatArray) -> None:
        self._highspy = highspy = load_highspy()
        left = devices.left[: devices.resources]
        self.value = 0.0
        self.request_price: FloatArray = np.zeros(len(weight))
        self.price: FloatArray = np.zeros(left.shape)
        upper = np.concatenate([weight, np.round(np.maximum(left, LEAST_LEFT), DIGITS).ravel()])
        self._solver = solver = quiet_solver(highspy)
        solver.setOptionValue("presolve", "off")
        solver.setOptionValue("simplex_strategy", PRIMAL_SIMPLEX)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        rows = len(upper)
        nothing = np.zeros(0, dtype=np.int32), np.zeros(0)
        solver.addRows(rows, np.full(rows, -highspy.kHighsInf), upper, 0, np.zeros(rows, dtype=np.int32), *nothing)

    def add(self, reward: FloatArray, request: IntArray, device: IntArray, use: FloatArray) -> None:
        """Add columns: float64[c], int64[c], int64[c], and `use` float64[c, resources, b]."""
        columns, devices, buckets = len(reward), *self.price.shape[1:]
        at, resource, bucket = np.nonzero(use)
        row = len(self.request_price) + (resource * devices + device[at]) * buckets + bucket
        first = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=columns) + 1)])
        own = np.zeros(first[-1], dtype=np.bool_)
        own[first[:-1]] = True  # of each column the first entry is in the row of its request
        index, value = np.empty(first[-1], dtype=np.int32), np.ones(first[-1])
        index[own], index[~own] = request, row
        value[~own] = use[at, resource, bucket]
        bounds = np.zeros(columns), np.full(columns, self._highspy.kHighsInf)
        self._solver.addCols(columns, reward, *bounds, len(index), first[:-1].astype(np.int32), index, value)

    def solve(self) -> bool:
        """Whether an optimum was found."""
        self._solver.run()
        if self._solver.getModelStatus() != self._highspy.HighsModelStatus.kOptimal:
            return False
        dual = np.maximum(np.array(self._solver.getSolution().row_dual), 0.0)
        self.value = float(self._solver.getInfo().objective_function_value)
        self.request_price = dual[: len(self.request_price)]
        self.price = dual[len(self.request_price) :].reshape(self.price.shape)
        return True
