"""The hindsight bound on reward: no schedule without preemption earns more on this trace (docs/bounds.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bidroute.bounds.dual import Latency, in_whole_blocks, longer, pieces_of, supply
from bidroute.bounds.lattice import Lattice
from bidroute.bounds.path_kernels import add_block, flow
from bidroute.bounds.problem import Problem
from bidroute.bounds.quick import least_duration_s
from bidroute.bounds.reward_kernels import best_entries, best_starts
from bidroute.bounds.search import DEFAULT_STEPS, at_cells, at_knots, climb, fine_lattice, knots_of, rough_lattice
from bidroute.core.objective import Objective
from bidroute.core.queue import FloatArray

SCALES = (0.0, 0.03, 0.1, 0.3, 1.0)  # of the mean worth of a device-second
PARTS = (0.1, 0.5, 0.9)  # of it charged by slots, the rest by KV
TYPICAL_WAITS_S = (1.0, 4.0, 16.0)
TOLERANCE = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Worth:
    """What each request of a problem is worth by its start, at most: `Objective.worth` at its least duration.

    `needs` float64[3, n]: least duration in seconds, output tokens, and the latest wait after which a request can still
    meet its SLOs. `first_s`: the least time from start to first token.
    """

    objective: Objective
    needs: FloatArray
    first_s: float

    @classmethod
    def of(
        cls, problem: Problem, objective: Objective, ttft_slo_s: float = math.inf, e2e_slo_s: float = math.inf
    ) -> Worth:
        """That of a problem's requests under these SLOs."""
        service_s = least_duration_s(problem)
        latest_s = np.minimum(ttft_slo_s - problem.fastest_s, e2e_slo_s - service_s)
        return cls(objective, np.stack([service_s, problem.output_tokens, latest_s]), problem.fastest_s)

    @property
    def weights(self) -> FloatArray:
        """As kernels read them (`reward_kernels`)."""
        o = self.objective
        constant = o.throughput + o.sigma
        return np.array([constant, o.alpha, o.goodput, o.latency, o.ttft, o.beta, o.gamma, o.horizon_s])

    def after(self, wait_s: float) -> FloatArray:
        """The worth of each request that starts after this wait, float64[n]."""
        service_s, output_tokens, latest_s = self.needs
        waits_s = np.full(len(service_s), wait_s)
        in_time = waits_s <= latest_s
        return self.objective.worth(waits_s, waits_s + self.first_s, waits_s + service_s, output_tokens, in_time)


def reward_bound(
    problem: Problem,
    worth: Worth,
    steps: int = DEFAULT_STEPS,
    before: FloatArray | None = None,
    on_step: Callable[[int, float], None] | None = None,
) -> float:
    """The most that a request can be worth on average. `steps` of the search for prices: more are tighter.

    `before` are good prices for the mean TTFT, float64[2, knots]. `on_step(done, bound)` is told the rough value of the
    best prices so far.
    """
    knots_s, count = knots_of(problem), len(problem.arrival_s)
    lattice, block = rough_lattice(problem, knots_s)

    def evaluate(prices: FloatArray) -> tuple[float, FloatArray]:
        value, excess = rough_reward(problem, worth, lattice, block, *at_cells(prices, knots_s, lattice))
        return -value, at_knots(excess, knots_s, lattice)

    def told(done: int, value: float) -> None:
        if on_step is not None:
            on_step(done, -value / count)

    guesses = _guesses(problem, worth, knots_s, before)
    least = 0.1 * np.max([guess.mean(axis=1) for guess in guesses], axis=0)
    prices = climb(evaluate, guesses, least, steps, told)
    fine, block = fine_lattice(problem, knots_s)
    most = reward_dual(problem, worth, fine, block, *at_cells(prices, knots_s, fine))
    return min(most, float(worth.after(0.0).sum())) / count * TOLERANCE


def reward_dual(
    problem: Problem, worth: Worth, lattice: Lattice, block: int, rho: FloatArray, kappa: FloatArray
) -> float:
    """The bound on the total at these prices ≥ 0, float64[cells]: ρ of a token, κ of each KV token it holds."""
    pieces = pieces_of(problem, lattice, block)
    prices = {tokens: lattice.prices(rho, kappa, tokens) for tokens in np.unique(pieces.first).tolist()}
    whole = lattice.prices(rho, kappa, block)
    gain = np.zeros(len(pieces.share))
    after = np.zeros((len(pieces.nodes), lattice.cells + 1))
    by_worth = worth.weights, worth.first_s, pieces.request, worth.needs
    for left in range(int(pieces.later.max()) + 1):
        if left:
            after = longer(lattice, whole, block, left, pieces.nodes, after, Latency.TTFT)
        for tokens in np.unique(pieces.first[pieces.later == left]).tolist():
            rows = np.flatnonzero((pieces.later == left) & (pieces.first == tokens))
            at = rows, pieces.arrival, pieces.node, pieces.held, after, lattice.cell_s
            best_starts(prices[tokens], lattice.low(tokens), tokens, *at, *by_worth, gain)
    earned, _ = supply(problem, lattice, rho, kappa, Latency.TTFT)
    return float(pieces.share @ gain + earned)


def rough_reward(
    problem: Problem, worth: Worth, lattice: Lattice, block: int, rho: FloatArray, kappa: FloatArray
) -> tuple[float, FloatArray]:
    """Nearly that, with outputs in whole blocks, and the descent direction by cell, float64[2, cells]: use − supply."""
    pieces = pieces_of(in_whole_blocks(problem, block), lattice, block)
    blocks, nodes = int(pieces.later.max()) + 1, pieces.nodes.tolist()
    price, low = lattice.prices(rho, kappa, block), lattice.low(block)
    going = np.zeros((blocks + 1, len(nodes), lattice.cells + 1))
    width = np.zeros((blocks + 1, len(nodes), lattice.cells), dtype=np.int64)
    waiting, waits = np.empty(lattice.cells + 1), np.empty(lattice.cells, dtype=np.int64)
    for left in range(1, blocks + 1):
        for node, final in enumerate(nodes):
            at = block, final - left * block, going[left - 1, node], lattice.cell_s
            add_block(price, low, *at, going[left, node], waiting, width[left, node], waits)
    gain, start = np.empty(len(pieces.share)), np.empty(len(pieces.share), dtype=np.int64)
    where = pieces.later + 1, pieces.node, pieces.arrival, lattice.cell_s
    best_entries(going, *where, worth.weights, worth.first_s, pieces.request, worth.needs, gain, start)
    taken = start >= 0
    running = np.zeros(going.shape)
    np.add.at(running, (pieces.later[taken] + 1, pieces.node[taken], start[taken]), pieces.share[taken])
    use = np.zeros((2, lattice.cells))
    for left in range(blocks, 0, -1):
        for node, final in enumerate(nodes):
            chosen = width[left, node], waits, False, low, block, final - left * block
            flow(*chosen, running[left, node], running[left - 1, node], use)
    earned, made = supply(problem, lattice, rho, kappa, Latency.TTFT)
    return float(pieces.share @ gain + earned), use - made


def _guesses(problem: Problem, worth: Worth, knots_s: FloatArray, before: FloatArray | None) -> list[FloatArray]:
    """Prices to begin from: shares of what a device-second earns on average, while there is work; and those that bound
    the TTFT, at what a second of waiting costs."""
    kind = max(problem.kinds, key=lambda one: one.count)
    at_once, work_s = worth.after(0.0), float(problem.work_s().sum())
    falling = np.clip(1.0 - knots_s / max(float(problem.arrival_s[-1]), work_s / problem.devices), 0.0, 1.0)
    guesses = []
    for shape in (falling, np.ceil(falling)):
        rho = at_once.sum() / work_s * shape * (kind.base_s / kind.batch_slots + kind.slot_s)
        kappa = at_once.sum() / work_s * shape * (kind.base_s / kind.kv_tokens + kind.token_s)
        guesses += [scale * np.stack([part * rho, (1.0 - part) * kappa]) for scale in SCALES for part in PARTS]
    if before is not None:
        for wait_s in TYPICAL_WAITS_S:
            slope = float(np.mean(at_once - worth.after(wait_s))) / wait_s
            guesses += [scale * slope * before for scale in (0.3, 1.0)]
    return guesses
