"""The exact linear program of a small instance (docs/how-it-works.md), solved by HiGHS.

It is the oracle that the first-order prices are tested against, and gives hindsight bounds. The size is requests ×
devices × starts columns over 2 × devices × periods rows (3 × with token budgets, docs/mixed.md), so it is for instances
of up to a few hundred requests.
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
    periods. Devices that process the prompts, too, have a `token_budget` int64[G] per period, and process
    `chunk_tokens` int64[G] of a prompt in each; both or neither are given. Raises ConfigError where shapes do not match
    or a capacity or length is below 1.
    """

    arrival_period: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    reward: FloatArray
    batch_slots: IntArray
    kv_tokens: IntArray
    token_budget: IntArray | None = None
    chunk_tokens: IntArray | None = None

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
        for name in ("token_budget", "chunk_tokens"):
            tokens = getattr(self, name)
            if (tokens is None) == self.mixed or (self.mixed and (len(tokens) != devices or np.any(tokens < 1))):
                raise ConfigError(f"exact LP: {name}={tokens}; expected {devices} of 1 or more, or neither of the two")

    @property
    def mixed(self) -> bool:
        """Whether its devices process prompts under a token budget, the third resource."""
        return self.token_budget is not None or self.chunk_tokens is not None

    def delay(self, request: int, device: int) -> int:
        """Periods before the one that makes the request's first token: its prompt has others of its own."""
        if self.chunk_tokens is None:
            return 0
        return max(int(self.prompt_tokens[request]) - 1, 0) // int(self.chunk_tokens[device])

    @property
    def capacities(self) -> list[IntArray]:
        """Slots, KV tokens and, if mixed, the token budget of the devices, int64[G] each: what the rows are about."""
        rows = [self.batch_slots, self.kv_tokens]
        return rows if self.token_budget is None else [*rows, self.token_budget]

    @property
    def periods(self) -> int:
        """K."""
        return int(self.reward.shape[2])


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum. `starts` float64[n, G, K] is x, `slot_price`, `kv_price` and `token_price` float64[G, K] the row
    duals, of one slot, of one KV token and of one token of the budget (all zero for the integer optimum, which has
    none, and where there are no such rows)."""

    value: float
    starts: FloatArray
    slot_price: FloatArray
    kv_price: FloatArray
    token_price: FloatArray


def solve_lp(instance: Instance) -> Solution:
    """The LP optimum with its prices. Raises ConfigError when highspy is not installed."""
    return _solve(instance, integer=False)


def solve_integer(instance: Instance) -> Solution:
    """The best schedule in whole requests. Raises ConfigError when highspy is not installed."""
    return _solve(instance, integer=True)


def dual_value(
    instance: Instance, slot_price: FloatArray, kv_price: FloatArray, token_price: FloatArray | None = None
) -> float:
    """The dual at these prices of one slot, of one KV token and, where devices have budgets, of one token of theirs
    (None: 0), all float64[G, K]: at any p ≥ 0 an upper bound.

    Σ_{g,k} (B_g pB + C_g pM + T_g pT) + Σ_j max(0, max_{g,τ} r − a·p). Raises ConfigError for a negative price.
    """
    prices = [slot_price, kv_price] + ([] if token_price is None or not instance.mixed else [token_price])
    if min(price.min(initial=0.0) for price in prices) < 0:
        raise ConfigError("exact LP: a price is negative; the dual bounds the optimum at prices of 0 or more")
    rows = list(zip(instance.capacities, prices, strict=False))
    capacity = sum(float(total @ price.sum(axis=1)) for total, price in rows)
    best = np.zeros(len(instance.arrival_period))
    for j, g, start in _columns(instance):
        held = column(instance, j, start, g)
        net = instance.reward[j, g, start] - sum(part @ price[g] for part, price in zip(held, prices, strict=False))
        best[j] = max(best[j], net)
    return float(capacity + best.sum())


def column(instance: Instance, request: int, start: int, device: int = 0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Slots and KV tokens that the request holds in each period when it starts in `start`, and the tokens of the budget
    that it takes (0 where there is none), float64[K] each.

    A prompt grows by chunks, the last of which makes the first token; from the next period on it is 1 per period.
    """
    slots, tokens, budget = np.zeros((3, instance.periods))
    prompt, life, delay = int(instance.prompt_tokens[request]), int(instance.output_tokens[request]), 0
    if instance.chunk_tokens is not None:
        chunk, delay = int(instance.chunk_tokens[device]), instance.delay(request, device)
        tokens[start : start + delay] = chunk * (1 + np.arange(delay))
        budget[start : start + delay] = chunk
        budget[start + delay] = max(prompt, 1) - chunk * delay
        budget[start + delay + 1 : start + delay + life] = 1.0
    slots[start : start + delay + life] = 1.0
    tokens[start + delay : start + delay + life] = prompt + 1 + np.arange(life)
    return slots, tokens, budget


def is_feasible(instance: Instance, starts: FloatArray) -> bool:
    """Whether x, float64[n, G, K], breaks no row: one start per request, the capacities of every device and period."""
    used = np.zeros((3, len(instance.batch_slots), instance.periods))
    allowed = np.zeros(starts.shape, dtype=np.bool_)
    for j, g, start in _columns(instance):
        allowed[j, g, start] = True
        if starts[j, g, start]:
            used[:, g] += starts[j, g, start] * np.stack(column(instance, j, start, g))
    slack = 1e-6
    return bool(
        np.all(starts[~allowed] == 0)
        and np.all(starts.sum(axis=(1, 2)) <= 1 + slack)
        and all(np.all(most * (1 + slack) >= row.T) for row, most in zip(used, instance.capacities, strict=False))
    )


def _columns(instance: Instance) -> list[tuple[int, int, int]]:
    """(request, device, start) of every column: after the arrival, and ending within the horizon."""
    return [
        (j, g, start)
        for j in range(len(instance.arrival_period))
        for g in range(len(instance.batch_slots))
        for start in range(
            int(instance.arrival_period[j]),
            instance.periods - int(instance.output_tokens[j]) - instance.delay(j, g) + 1,
        )
    ]


def _solve(instance: Instance, *, integer: bool) -> Solution:
    highspy, columns = load_highspy(), _columns(instance)
    starts = np.zeros(instance.reward.shape)
    prices = np.zeros((3, len(instance.batch_slots), instance.periods))
    if not columns:
        return Solution(0.0, starts, *prices)
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
        rows = rows.reshape(-1, *prices.shape[1:])
        prices[: len(rows)] = np.maximum(rows, 0.0)
    return Solution(float(solver.getInfo().objective_function_value), starts, *prices)


def _model(highspy: ModuleType, instance: Instance, columns: list[tuple[int, int, int]], integer: bool) -> Any:
    """Rows: one per request, then a slot row per device and period, then the KV rows, then those of token budgets."""
    n, devices, periods = len(instance.arrival_period), len(instance.batch_slots), instance.periods
    first = [0]
    index: list[IntArray] = []
    entries: list[FloatArray] = []
    capacities = instance.capacities
    for j, g, start in columns:
        life = np.arange(start, start + instance.delay(j, g) + int(instance.output_tokens[j]))
        index.append(np.array([j]))
        entries.append(np.ones(1))
        for k, held in enumerate(column(instance, j, start, g)[: len(capacities)]):
            index.append(n + (k * devices + g) * periods + life)
            entries.append(held[life])
        first.append(first[-1] + 1 + len(capacities) * len(life))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(columns), n + len(capacities) * devices * periods
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = np.array([instance.reward[column] for column in columns])
    model.col_lower_, model.col_upper_ = np.zeros(len(columns)), np.ones(len(columns))
    model.row_lower_ = np.full(model.num_row_, -highspy.kHighsInf)
    upper = [np.ones(n), *(np.repeat(capacity, periods) for capacity in capacities)]
    model.row_upper_ = np.concatenate(upper).astype(np.float64)
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
