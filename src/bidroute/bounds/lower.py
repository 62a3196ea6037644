"""Lower bounds on the mean latencies of a whole trace: the best prices found, and what they prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bidroute.bounds.dual import Latency, dual_s, rough_dual
from bidroute.bounds.lattice import Lattice
from bidroute.bounds.problem import Problem
from bidroute.bounds.quick import least_duration_s, quick_bound_s, time_price
from bidroute.core.queue import FloatArray

DEFAULT_STEPS = 150
KNOTS = 120
ROUGH_BLOCKS, FINE_BLOCKS = 48, 80  # at most so many blocks has a request
ROUGH_CELLS, FINE_CELLS = (600, 4000), (2000, 20_000)
STEP = 0.03
TOLERANCE = 1.0 - 1e-9
OnStep = Callable[[int, int, float], None]
SHARES, SCALES = (0.1, 0.5, 0.9), (0.0, 0.4, 0.8)


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """In seconds: `quick_e2e_s` bounds the mean E2E quickly, `e2e_s` best, and `ttft_s` holds without preemption."""

    requests: int
    quick_e2e_s: float
    e2e_s: float
    ttft_s: float


def lower_bounds(problem: Problem, steps: int = DEFAULT_STEPS, on_step: OnStep | None = None) -> LowerBounds:
    """All lower bounds. `steps` of the search for prices: more are tighter, any number is valid.

    `on_step(done, total, bound_s)` is told the rough value of the best prices so far.
    """
    knots_s = np.linspace(0.0, _horizon_s(problem), KNOTS)
    bounds, prices = {}, None
    for number, latency in enumerate(Latency):

        def told(done: int, value: float, number: int = number) -> None:
            if on_step is not None:
                on_step(number * steps + done, 2 * steps, value)

        prices = _search(problem, knots_s, latency, steps, prices, told)
        bounds[latency] = _proven_s(problem, knots_s, latency, prices)
    quick_s = quick_bound_s(problem) * TOLERANCE
    least_s = float(np.mean(least_duration_s(problem))) * TOLERANCE
    e2e_s = max(quick_s, least_s, bounds[Latency.E2E])
    ttft_s = max(problem.fastest_s * TOLERANCE, bounds[Latency.TTFT])
    return LowerBounds(len(problem.arrival_s), quick_s, e2e_s, ttft_s)


def _proven_s(problem: Problem, knots_s: FloatArray, latency: Latency, prices: FloatArray) -> float:
    """What prices at the knots prove about a mean latency, in seconds."""
    fine = _lattice(problem, float(knots_s[-1]), FINE_CELLS, 0.8)
    rho, kappa = _at_cells(prices, knots_s, fine)
    return dual_s(problem, fine, _block(problem, fine, FINE_BLOCKS), rho, kappa, latency) * TOLERANCE


def _horizon_s(problem: Problem) -> float:
    """When everything is expected to have ended; beyond it tokens are free, so a wrong guess costs tightness only."""
    busy_s = max(float(problem.arrival_s[-1]), float(problem.work_s().sum()) / problem.devices)
    return 1.1 * busy_s + float(problem.output_tokens.max()) * problem.slowest_s


def _lattice(problem: Problem, horizon_s: float, limits: tuple[int, int], cell_iterations: float) -> Lattice:
    """Cells of about `cell_iterations` of the fastest iterations, and between `limits` of them."""
    cells = int(np.clip(horizon_s / (cell_iterations * problem.fastest_s), *limits))
    return Lattice(cells, horizon_s / cells, problem.fastest_s, problem.slowest_s)


def _block(problem: Problem, lattice: Lattice, blocks: int) -> int:
    """Tokens per block: few blocks, and each of some cells."""
    by_cells = 4.0 * lattice.cell_s / problem.fastest_s
    return int(np.ceil(max(float(problem.output_tokens.max()) / blocks, by_cells)))


def _at_cells(prices: FloatArray, knots_s: FloatArray, lattice: Lattice) -> tuple[FloatArray, FloatArray]:
    middle_s = (np.arange(lattice.cells) + 0.5) * lattice.cell_s
    return np.interp(middle_s, knots_s, prices[0]), np.interp(middle_s, knots_s, prices[1])


def _search(
    problem: Problem,
    knots_s: FloatArray,
    latency: Latency,
    steps: int,
    before: FloatArray | None,
    on_step: Callable[[int, float], None],
) -> FloatArray:
    """Good prices at the knots, float64[2, knots]: steps along a smoothed, normalised supergradient (Adam).

    `before` are good prices for another latency, where there are some.
    """
    lattice = _lattice(problem, float(knots_s[-1]), ROUGH_CELLS, 4.0)
    block, requests = _block(problem, lattice, ROUGH_BLOCKS), len(problem.arrival_s)
    guesses = _guesses(problem, knots_s, latency, before)
    worth = [rough_dual(problem, lattice, block, *_at_cells(guess, knots_s, lattice), latency)[0] for guess in guesses]
    prices = best = guesses[int(np.argmax(worth))]
    scale = np.maximum(prices.mean(axis=1), [problem.fastest_s, problem.fastest_s / problem.most_kv])[:, None]
    mean, square = np.zeros((2, *prices.shape))
    most = -np.inf
    for step in range(1, steps + 1):
        value, excess = rough_dual(problem, lattice, block, *_at_cells(prices, knots_s, lattice), latency)
        if value > most:
            most, best = value, prices
        on_step(step, most / requests)
        slope = scale * _at_knots(excess, knots_s, lattice)
        mean = 0.9 * mean + 0.1 * slope
        square = 0.98 * square + 0.02 * slope**2
        direction = mean / (1.0 - 0.9**step) / (np.sqrt(square / (1.0 - 0.98**step)) + 1e-12)
        prices = np.maximum(prices + STEP / (1.0 + step / 60.0) * scale * direction, 0.0)
    return best


def _at_knots(excess: FloatArray, knots_s: FloatArray, lattice: Lattice) -> FloatArray:
    """The supergradient by knot, from that by cell: the transpose of the interpolation."""
    position = (np.arange(lattice.cells) + 0.5) * lattice.cell_s / (knots_s[1] - knots_s[0])
    left = np.minimum(position.astype(np.int64), len(knots_s) - 2)
    weight = position - left
    slope = np.zeros((2, len(knots_s)))
    for row in range(2):
        slope[row] += np.bincount(left, excess[row] * (1.0 - weight), len(knots_s))
        slope[row] += np.bincount(left + 1, excess[row] * weight, len(knots_s))
    return slope


def _guesses(problem: Problem, knots_s: FloatArray, latency: Latency, before: FloatArray | None) -> list[FloatArray]:
    """Prices to begin from: they charge a request what a device-second is worth for the work it takes."""
    kind = max(problem.kinds, key=lambda one: one.count)
    own_s = _typical_s(problem)
    guesses = []
    for share in SHARES:
        worth = time_price(problem, problem.work_s(share), knots_s)
        rho = worth * (share * kind.base_s / kind.batch_slots + kind.slot_s)
        kappa = worth * ((1.0 - share) * kind.base_s / kind.kv_tokens + kind.token_s)
        guesses += [np.stack([scale * rho + latency.holding * own_s, scale * kappa]) for scale in SCALES]
    if before is not None:
        rho, kappa = np.maximum(before[0] - own_s, 0.0), before[1]
        guesses += [scale * np.stack([rho, kappa]) for scale in (0.1, *SCALES)]
    return guesses


def _typical_s(problem: Problem) -> float:
    """The iteration time of a device as full as it gets with requests that hold the average."""
    held = float(problem.token_iterations.sum() / problem.output_tokens.sum())
    kind = max(problem.kinds, key=lambda one: one.count)
    batch = min(float(kind.batch_slots), kind.kv_tokens / held)
    return kind.base_s + (kind.slot_s + kind.token_s * held) * batch
