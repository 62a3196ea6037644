"""Good prices: the time they are told at, the lattices they are tried on, and steps along a supergradient.

Any prices give a valid bound, so nothing here needs a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bidroute.bounds.lattice import Lattice
from bidroute.bounds.problem import Problem
from bidroute.core.queue import FloatArray

DEFAULT_STEPS = 150
KNOTS = 120
ROUGH_BLOCKS, FINE_BLOCKS = 48, 80  # at most so many blocks has a request
ROUGH_CELLS, FINE_CELLS = (600, 4000), (2000, 30_000)
STEP = 0.03
Evaluate = Callable[[FloatArray], tuple[float, FloatArray]]


def knots_of(problem: Problem) -> FloatArray:
    """The times at which prices are told, in between they are interpolated; float64[KNOTS]."""
    return np.linspace(0.0, horizon_s(problem), KNOTS)


def horizon_s(problem: Problem) -> float:
    """When everything is expected to have ended; beyond it tokens are free, so a wrong guess costs tightness only."""
    busy_s = max(float(problem.arrival_s[-1]), float(problem.work_s().sum()) / problem.devices)
    return 1.1 * busy_s + float(problem.output_tokens.max()) * problem.slowest_s


def rough_lattice(problem: Problem, knots_s: FloatArray) -> tuple[Lattice, int]:
    """The lattice on which prices are searched, and its tokens per block."""
    lattice = lattice_of(problem, float(knots_s[-1]), ROUGH_CELLS, 4.0)
    return lattice, block_of(problem, lattice, ROUGH_BLOCKS)


def fine_lattice(problem: Problem, knots_s: FloatArray) -> tuple[Lattice, int]:
    """The lattice on which bounds are proved, and its tokens per block."""
    lattice = lattice_of(problem, float(knots_s[-1]), FINE_CELLS, 0.4)
    return lattice, block_of(problem, lattice, FINE_BLOCKS)


def lattice_of(problem: Problem, horizon_s: float, limits: tuple[int, int], cell_iterations: float) -> Lattice:
    """Cells of about `cell_iterations` of the fastest iterations, and between `limits` of them."""
    cells = int(np.clip(horizon_s / (cell_iterations * problem.fastest_s), *limits))
    return Lattice(cells, horizon_s / cells, problem.fastest_s, problem.slowest_s)


def block_of(problem: Problem, lattice: Lattice, blocks: int) -> int:
    """Tokens per block: few blocks, and each of some cells."""
    by_cells = 4.0 * lattice.cell_s / problem.fastest_s
    return int(np.ceil(max(float(problem.output_tokens.max()) / blocks, by_cells)))


def at_cells(prices: FloatArray, knots_s: FloatArray, lattice: Lattice) -> tuple[FloatArray, FloatArray]:
    """ρ and κ in every cell, float64[cells] each, from prices float64[2, knots]."""
    middle_s = (np.arange(lattice.cells) + 0.5) * lattice.cell_s
    return np.interp(middle_s, knots_s, prices[0]), np.interp(middle_s, knots_s, prices[1])


def climb(
    evaluate: Evaluate,
    guesses: Sequence[FloatArray],
    least: FloatArray,
    steps: int,
    on_step: Callable[[int, float], None],
) -> FloatArray:
    """Good prices at the knots, float64[2, knots]: steps along a smoothed, normalised supergradient (Adam).

    `evaluate` gives the value at such prices, to be maximised, and its supergradient. It begins from the best of the
    `guesses`. `least` float64[2]: the size of a step of ρ and of κ where the guess is 0.
    """
    worth = [evaluate(guess)[0] for guess in guesses]
    prices = best = guesses[int(np.argmax(worth))]
    scale = np.maximum(prices.mean(axis=1), least)[:, None]
    mean, square = np.zeros((2, *prices.shape))
    most = -np.inf
    for step in range(1, steps + 1):
        value, excess = evaluate(prices)
        if value > most:
            most, best = value, prices
        on_step(step, most)
        slope = scale * excess
        mean = 0.9 * mean + 0.1 * slope
        square = 0.98 * square + 0.02 * slope**2
        direction = mean / (1.0 - 0.9**step) / (np.sqrt(square / (1.0 - 0.98**step)) + 1e-12)
        prices = np.maximum(prices + STEP / (1.0 + step / 60.0) * scale * direction, 0.0)
    return best


def at_knots(excess: FloatArray, knots_s: FloatArray, lattice: Lattice) -> FloatArray:
    """The supergradient by knot, from that by cell: the transpose of the interpolation."""
    position = (np.arange(lattice.cells) + 0.5) * lattice.cell_s / (knots_s[1] - knots_s[0])
    left = np.minimum(position.astype(np.int64), len(knots_s) - 2)
    weight = position - left
    slope = np.zeros((2, len(knots_s)))
    for row in range(2):
        slope[row] += np.bincount(left, excess[row] * (1.0 - weight), len(knots_s))
        slope[row] += np.bincount(left + 1, excess[row] * weight, len(knots_s))
    return slope
