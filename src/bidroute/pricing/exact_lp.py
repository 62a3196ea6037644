"""The exact linear program of a small instance (docs/how-it-works.md), solved by HiGHS.

It is the oracle that the first-order prices are tested against, and gives hindsight bounds. The size is requests ×
devices × starts columns over 2 × devices × periods rows, so it is for instances of up to a few hundred requests.
Needs the extra `exact` (highspy), which is imported only when something is solved.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError

_greeting_lock = threading.Lock()  # two threads that both redirect stdout could leave it redirected


@dataclass(frozen=True, slots=True)
class Instance:
    """n requests on G devices over K periods, with a common clock.

    `arrival_period`, `prompt_tokens`, `output_tokens` int64[n]; `reward` float64[n, G, K], what request j is worth
    when it starts on device g at period τ; `batch_slots`, `kv_tokens` int64[G]. A request must end within the K
    periods. Raises ConfigError where shapes do not match or a capacity or length is below 1.
    """

    arrival_period: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    reward: FloatArray
    batch_slots: IntArray
    kv_tokens: IntArray

    def __post_init__(self) -> None:
        n, devices = len(self.arrival_period), len(self.batch_slots)
        if self.reward.ndim != 3 or self.reward.shape[:2] != (n, devices):
            raise ConfigError(f"exact LP: reward of shape {self.reward.shape}; expected ({n}, {devices}, periods)")
        for name, size in (("prompt_tokens", n), ("output_tokens", n), ("kv_tokens", devices)):
            if len(getattr(self, name)) != size:
                raise ConfigError(f"exact LP: {len(getattr(self, name))} {name}; expected {size}")
        for name in ("output_tokens", "batch_slots", "kv_tokens"):
            if np.any(getattr(self, name) < 1):
                raise ConfigError(f"exact LP: {name} of {int(getattr(self, name).min())}; expected 1 or more")

    @property
    def periods(self) -> int:
        """K."""
        return int(self.reward.shape[2])


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum. `starts` float64[n, G, K] is x, `slot_price` and `kv_price` float64[G, K] the row duals, of one slot
    and of one token (all zero for the integer optimum, which has none)."""

    value: float
    starts: FloatArray
    slot_price: FloatArray
    kv_price: FloatArray


def solve_lp(instance: Instance) -> Solution:
    """The LP optimum with its prices. Raises ConfigError when highspy is not installed."""
    return _solve(instance, integer=False)


def solve_integer(instance: Instance) -> Solution:
    """The best schedule in whole requests. Raises ConfigError when highspy is not installed."""
    return _solve(instance, integer=True)


def dual_value(instance: Instance, slot_price: FloatArray, kv_price: FloatArray) -> float:
    """The dual at these prices of one slot and of one token, both float64[G, K]: at any p ≥ 0 an upper bound.

    Σ_{g,k} (B_g pB + C_g pM) + Σ_j max(0, max_{g,τ} r − a·p). Raises ConfigError for a negative price.
    """
    if slot_price.min(initial=0.0) < 0 or kv_price.min(initial=0.0) < 0:
        raise ConfigError("exact LP: a price is negative; the dual bounds the optimum at prices of 0 or more")
    capacity = instance.batch_slots @ slot_price.sum(axis=1) + instance.kv_tokens @ kv_price.sum(axis=1)
    best = np.zeros(len(instance.arrival_period))
    for j, g, start in _columns(instance):
        slots, tokens = column(instance, j, start)
        net = instance.reward[j, g, start] - slots @ slot_price[g] - tokens @ kv_price[g]
        best[j] = max(best[j], net)
    return float(capacity + best.sum())


def column(instance: Instance, request: int, start: int) -> tuple[FloatArray, FloatArray]:
    """Slots and KV tokens that the request holds in each period when it starts in `start`, float64[K] each."""
    slots, tokens = np.zeros((2, instance.periods))
    life = int(instance.output_tokens[request])
    slots[start : start + life] = 1.0
    tokens[start : start + life] = int(instance.prompt_tokens[request]) + 1 + np.arange(life)
    return slots, tokens


def is_feasible(instance: Instance, starts: FloatArray) -> bool:
    """Whether x, float64[n, G, K], breaks no row: one start per request, slots and KV of every device and period."""
    slots, tokens = np.zeros((2, len(instance.batch_slots), instance.periods))
    allowed = np.zeros(starts.shape, dtype=np.bool_)
    for j, g, start in _columns(instance):
        allowed[j, g, start] = True
        if starts[j, g, start]:
            held = column(instance, j, start)
            slots[g] += starts[j, g, start] * held[0]
            tokens[g] += starts[j, g, start] * held[1]
    slack = 1e-6
    return bool(
        np.all(starts[~allowed] == 0)
        and np.all(starts.sum(axis=(1, 2)) <= 1 + slack)
        and np.all(slots <= instance.batch_slots[:, None] * (1 + slack))
        and np.all(tokens <= instance.kv_tokens[:, None] * (1 + slack))
    )


def _columns(instance: Instance) -> list[tuple[int, int, int]]:
    """(request, device, start) of every column: after the arrival, and ending within the horizon."""
    return [
        (j, g, start)
        for j in range(len(instance.arrival_period))
        for g in range(len(instance.batch_slots))
        for start in range(int(instance.arrival_period[j]), instance.periods - int(instance.output_tokens[j]) + 1)
    ]


def _solve(instance: Instance, *, integer: bool) -> Solution:
    highspy, columns = load_highspy(), _columns(instance)
    starts = np.zeros(instance.reward.shape)
    prices = np.zeros((2, len(instance.batch_slots), instance.periods))
    if not columns:
        return Solution(0.0, starts, prices[0], prices[1])
    solver = quiet_solver(highspy)
    solver.passModel(_model(highspy, instance, columns, integer))
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ConfigError(f"exact LP: HiGHS ended with {solver.getModelStatus()}; expected an optimum")
    solution = solver.getSolution()
    for (j, g, start), value in zip(columns, solution.col_value, strict=True):
        starts[j, g, start] = value
    if not integer:
        rows = np.array(solution.row_dual)[len(instance.arrival_period) :]
        prices = np.maximum(rows.reshape(prices.shape), 0.0)
    return Solution(float(solver.getInfo().objective_function_value), starts, prices[0], prices[1])


def _model(highspy: ModuleType, instance: Instance, columns: list[tuple[int, int, int]], integer: bool) -> Any:
    """Rows: one per request, then a slot row per device and period, then a KV row per device and period."""
    n, devices, periods = len(instance.arrival_period), len(instance.batch_slots), instance.periods
    first = [0]
    index: list[IntArray] = []
    entries: list[FloatArray] = []
    for j, g, start in columns:
        life = int(instance.output_tokens[j])
        slot_rows = n + g * periods + start + np.arange(life)
        index += [np.array([j]), slot_rows, slot_rows + devices * periods]
        entries += [np.ones(1 + life), int(instance.prompt_tokens[j]) + 1.0 + np.arange(life, dtype=np.float64)]
        first.append(first[-1] + 1 + 2 * life)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(columns), n + 2 * devices * periods
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = np.array([instance.reward[column] for column in columns])
    model.col_lower_, model.col_upper_ = np.zeros(len(columns)), np.ones(len(columns))
    model.row_lower_ = np.full(model.num_row_, -highspy.kHighsInf)
    capacities = [np.ones(n), np.repeat(instance.batch_slots, periods), np.repeat(instance.kv_tokens, periods)]
    model.row_upper_ = np.concatenate(capacities).astype(np.float64)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.array(first)
    model.a_matrix_.index_ = np.concatenate(index)
    model.a_matrix_.value_ = np.concatenate(entries)
    if integer:
        model.integrality_ = [highspy.HighsVarType.kInteger] * len(columns)
    return model


def load_highspy() -> ModuleType:
    """The solver. Raises ConfigError when it is not installed."""
    try:
        import highspy
    except ImportError:
        raise ConfigError("the exact LP needs highspy; run: pip install 'bidroute[exact]'") from None
    module: ModuleType = highspy
    return module


def quiet_solver(highspy: ModuleType) -> Any:
    """A new solver that prints nothing and runs on one thread."""
    with _greeting_lock:
        _discard_greeting(highspy)
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    return solver


@cache
def _discard_greeting(highspy: ModuleType) -> None:
    """Make the first solver of this process, whose constructor writes a banner that no option can turn off.

    C code writes it, past `sys.stdout`: for that moment file descriptor 1 leads nowhere.
    """
    try:
        stdout = os.dup(1)
    except OSError:  # there is none to write to
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        highspy.Highs()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
