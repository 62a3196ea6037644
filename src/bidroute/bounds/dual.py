"""The dual of the pooled schedule at any prices: a lower bound on a mean latency (docs/bounds.md has the proof)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from bidroute.bounds.lattice import Lattice
from bidroute.bounds.path_kernels import add_block, first_blocks, flow
from bidroute.bounds.problem import Problem
from bidroute.core.queue import FloatArray, IntArray

NODES = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95, 1.0)  # quantiles of final KV between which costs are interpolated


class Latency(Enum):
    """Which mean is bounded. TTFT is of schedules that never preempt."""

    E2E = "e2e"
    TTFT = "ttft"

    @property
    def holding(self) -> float:
        """What a running request costs per second, as against 1 for one that waits for its start."""
        return 1.0 if self is Latency.E2E else 0.0


@dataclass(frozen=True, slots=True)
class Pieces:
    """Requests as blocks at nodes of final KV.

    Row i stands for `share` of `request`, which arrives in cell `arrival`, makes a first block of `first` tokens and
    then `later` whole blocks, with the final KV of `node`; `held` is the KV of its first token there. What a request
    costs is concave in its final KV (a minimum of affine functions), so its shares at two nodes never cost more than
    the truth.
    """

    nodes: FloatArray
    request: IntArray
    share: FloatArray
    arrival: IntArray
    first: IntArray
    later: IntArray
    node: IntArray
    held: FloatArray


def pieces_of(problem: Problem, lattice: Lattice, block: int) -> Pieces:
    """The requests of a problem, in blocks of `block` tokens."""
    final = problem.prompt_tokens + problem.output_tokens + 1.0
    nodes = np.unique(np.quantile(final, NODES))
    upper = np.clip(np.searchsorted(nodes, final), 1, max(len(nodes) - 1, 1))
    lower = upper - 1
    if len(nodes) == 1:
        upper = lower = np.zeros(len(final), dtype=np.int64)
    gap = nodes[upper] - nodes[lower]
    weight = np.divide(final - nodes[lower], gap, out=np.zeros(len(final)), where=gap > 0)
    share = np.concatenate([1.0 - weight, weight])
    rows = np.flatnonzero(share > 0)
    request, node = rows % len(final), np.concatenate([lower, upper])[rows]
    output = problem.output_tokens[request].astype(np.int64)
    later = (output - 1) // block
    arrival = np.minimum((problem.arrival_s[request] / lattice.cell_s).astype(np.int64), lattice.cells)
    return Pieces(nodes, request, share[rows], arrival, output - later * block, later, node, nodes[node] - output)


def dual_s(
    problem: Problem, lattice: Lattice, block: int, rho: FloatArray, kappa: FloatArray, latency: Latency
) -> float:
    """The bound on the mean latency at these prices ≥ 0, float64[cells]: ρ of a token, κ of each KV token it holds."""
    pieces = pieces_of(problem, lattice, block)
    prices = {tokens: lattice.prices(rho, kappa, tokens) for tokens in np.unique(pieces.first).tolist()}
    whole = lattice.prices(rho, kappa, block)
    cost = np.zeros(len(pieces.share))
    after = np.zeros((len(pieces.nodes), lattice.cells + 1))
    for left in range(int(pieces.later.max()) + 1):
        if left:
            after = longer(lattice, whole, block, left, pieces.nodes, after, latency)
        for tokens in np.unique(pieces.first[pieces.later == left]).tolist():
            rows = np.flatnonzero((pieces.later == left) & (pieces.first == tokens))
            at = pieces.arrival, pieces.node, pieces.held
            first_blocks(prices[tokens], lattice.low(tokens), tokens, rows, *at, after, lattice.cell_s, cost)
    earned, _ = supply(problem, lattice, rho, kappa, latency)
    started = problem.fastest_s if latency is Latency.TTFT else 0.0  # the iteration that makes the first token
    return float(pieces.share @ cost - earned) / len(problem.arrival_s) + started


def longer(
    lattice: Lattice, price: FloatArray, block: int, left: int, nodes: FloatArray, after: FloatArray, latency: Latency
) -> FloatArray:
    """The costs of `left` blocks at every node, float64[nodes, cells + 1], from those of one block less."""
    going, value = np.empty(after.shape), np.empty(after.shape)
    width, waits = np.empty((2, lattice.cells), dtype=np.int64)
    low = lattice.low(block)
    for node, final in enumerate(nodes.tolist()):
        at = block, final - left * block, after[node], lattice.cell_s
        add_block(price, low, *at, going[node], value[node], width, waits)
    return value if latency is Latency.E2E else going  # who may not be preempted goes on at once


def supply(
    problem: Problem, lattice: Lattice, rho: FloatArray, kappa: FloatArray, latency: Latency
) -> tuple[float, FloatArray]:
    """The most that the fleet can earn at these prices, and the tokens and KV it then makes, float64[2, cells]."""
    earned, made = 0.0, np.zeros((2, lattice.cells))
    for kind in problem.kinds:
        best, tokens, held = kind.revenue(rho, kappa, latency.holding, problem.fewest_kv, problem.most_kv)
        seconds = kind.count * lattice.cell_s
        earned += seconds * float(best.sum())
        made += seconds * np.stack([tokens, held])
    return earned, made


def in_whole_blocks(problem: Problem, block: int) -> Problem:
    """The problem with outputs rounded to whole blocks, one or more."""
    whole = np.maximum(np.round(problem.output_tokens / block), 1.0) * block
    return Problem(problem.arrival_s, problem.prompt_tokens, whole, problem.kinds)


def rough_dual(
    problem: Problem, lattice: Lattice, block: int, rho: FloatArray, kappa: FloatArray, latency: Latency
) -> tuple[float, FloatArray]:
    """Nearly the dual, in total seconds, with outputs in whole blocks; its supergradient by cell, float64[2, cells].

    Quick, for the search of good prices; `dual_s` then says what these are worth.
    """
    pieces = pieces_of(in_whole_blocks(problem, block), lattice, block)
    blocks, nodes = int(pieces.later.max()) + 1, pieces.nodes.tolist()
    price, low = lattice.prices(rho, kappa, block), lattice.low(block)
    going, value = np.zeros((2, blocks + 1, len(nodes), lattice.cells + 1))
    width, waits = np.zeros((2, blocks + 1, len(nodes), lattice.cells), dtype=np.int64)
    after = value if latency is Latency.E2E else going
    for left in range(1, blocks + 1):
        for node, final in enumerate(nodes):
            at = left, node
            rest = block, final - left * block, after[left - 1, node], lattice.cell_s
            add_block(price, low, *rest, going[at], value[at], width[at], waits[at])
    entry = (pieces.later + 1, pieces.node, pieces.arrival)
    entering, running = np.zeros((2, *value.shape))
    np.add.at(entering, entry, pieces.share)
    use = np.zeros((2, lattice.cells))
    then = entering if latency is Latency.E2E else running
    for left in range(blocks, 0, -1):
        for node, final in enumerate(nodes):
            at = left, node
            step, held = (width[at], waits[at]), final - left * block
            flow(*step, True, low, block, held, entering[at], then[left - 1, node], use)
            if then is running:
                flow(*step, False, low, block, held, running[at], running[left - 1, node], use)
    earned, made = supply(problem, lattice, rho, kappa, latency)
    return float(pieces.share @ value[entry]) - earned, use - made
