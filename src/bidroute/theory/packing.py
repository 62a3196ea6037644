"""Packing linear programs: max r·x, A x ≤ d, 0 ≤ x ≤ 1; solved by HiGHS, and bounded at any prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import BoolArray, FloatArray
from bidroute.errors import ConfigError
from bidroute.pricing.exact_lp import load_highspy, quiet_solver


@dataclass(frozen=True, slots=True)
class Packing:
    """`reward` float64[n], `use` float64[m, n] ≥ 0, `capacity` float64[m] > 0."""

    reward: FloatArray
    use: FloatArray
    capacity: FloatArray

    def dual(self, price: FloatArray) -> float:
        """An upper bound on every packing, at any prices ≥ 0, float64[m] (weak duality)."""
        return float(self.capacity @ price + np.maximum(self.reward - price @ self.use, 0.0).sum())

    def value(self, taken: BoolArray) -> float:
        """What these items, bool[n], earn."""
        return float(self.reward @ taken)

    def allows(self, taken: BoolArray) -> bool:
        """Whether these items, bool[n], fit together."""
        return bool(np.all(self.use @ taken <= self.capacity * (1.0 + 1e-9)))


class GrowingPacking:
    """The LP of a packing's first items, solved again from its last basis as items come and the capacity changes."""

    def __init__(self, packing: Packing) -> None:
        self._packing, self._items = packing, 0
        self._highspy = highspy = load_highspy()
        self._solver = solver = quiet_solver(highspy)
        rows = len(packing.capacity)
        self._nothing = np.full(rows, -highspy.kHighsInf)
        empty = np.zeros(rows, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0)
        solver.addRows(rows, self._nothing, packing.capacity, 0, *empty)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        solver.setOptionValue("presolve", "off")  # which would forget the basis

    def price(self, items: int, capacity: FloatArray) -> FloatArray:
        """Prices, float64[m], of the first `items`, never fewer than before, had they this capacity, float64[m]."""
        packing, new = self._packing, slice(self._items, items)
        count, rows = items - self._items, len(capacity)
        index = np.tile(np.arange(rows, dtype=np.int32), count)
        first = np.arange(count, dtype=np.int32) * rows
        use = packing.use[:, new].T.ravel()
        self._solver.addCols(count, packing.reward[new], np.zeros(count), np.ones(count), len(use), first, index, use)
        self._items = items
        self._solver.changeRowsBounds(rows, np.arange(rows, dtype=np.int32), self._nothing, capacity)
        self._solver.run()
        if self._solver.getModelStatus() != self._highspy.HighsModelStatus.kOptimal:
            raise ConfigError(f"packing: HiGHS ended with {self._solver.getModelStatus()}; expected an optimum")
        price: FloatArray = np.maximum(np.array(self._solver.getSolution().row_dual), 0.0)
        return price


@dataclass(frozen=True, slots=True)
class Optimum:
    """`value` of the best found, `bound` that nothing exceeds (equal when solved to the end), `price` float64[m]."""

    value: float
    bound: float
    price: FloatArray


def solve(packing: Packing, *, integer: bool = False, time_limit_s: float = 60.0) -> Optimum:
    """The LP optimum with its prices, or the integer one (prices 0). Raises ConfigError without the extra `exact`."""
    highspy = load_highspy()
    rows, items = packing.use.shape
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = items, rows
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = packing.reward
    model.col_lower_, model.col_upper_ = np.zeros(items), np.ones(items)
    model.row_lower_, model.row_upper_ = np.full(rows, -highspy.kHighsInf), packing.capacity
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.arange(items + 1) * rows
    model.a_matrix_.index_ = np.tile(np.arange(rows), items)
    model.a_matrix_.value_ = packing.use.T.ravel()
    if integer:
        model.integrality_ = [highspy.HighsVarType.kInteger] * items
    solver = quiet_solver(highspy)
    solver.setOptionValue("time_limit", time_limit_s)
    solver.passModel(model)
    solver.run()
    ended = highspy.HighsModelStatus
    if solver.getModelStatus() not in (ended.kOptimal, *((ended.kTimeLimit,) if integer else ())):
        raise ConfigError(f"packing: HiGHS ended with {solver.getModelStatus()}; expected an optimum")
    info = solver.getInfo()
    value = float(info.objective_function_value)
    if integer:
        return Optimum(value, float(info.mip_dual_bound), np.zeros(rows))
    return Optimum(value, value, np.maximum(np.array(solver.getSolution().row_dual), 0.0))
