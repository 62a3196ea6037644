"""Lower bounds on the mean latencies of a whole trace: the best prices found, and what they prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bidroute.bounds.dual import Latency, dual_s, rough_dual
from bidroute.bounds.problem import Problem
from bidroute.bounds.quick import least_duration_s, quick_bound_s, time_price
from bidroute.bounds.search import DEFAULT_STEPS, at_cells, at_knots, climb, fine_lattice, knots_of, rough_lattice
from bidroute.core.queue import FloatArray

TOLERANCE = 1.0 - 1e-9
OnStep = Callable[[int, int, float], None]
SHARES, SCALES = (0.1, 0.5, 0.9), (0.0, 0.4, 0.8)


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """In seconds: `quick_e2e_s` bounds the mean E2E quickly, `e2e_s` best, and `ttft_s` holds without preemption.

    `ttft_prices` float64[2, knots] are those that prove the last one.
    """

    requests: int
    quick_e2e_s: float
    e2e_s: float
    ttft_s: float
    ttft_prices: FloatArray


def lower_bounds(problem: Problem, steps: int = DEFAULT_STEPS, on_step: OnStep | None = None) -> LowerBounds:
    """All lower bounds. `steps` of the search for prices: more are tighter, any number is valid.

    `on_step(done, total, bound_s)` is told the rough value of the best prices so far.
    """
    knots_s = knots_of(problem)
    bounds, prices = {}, None
    for number, latency in enumerate(Latency):

        def told(done: int, value: float, number: int = number) -> None:
            if on_step is not None:
                on_step(number * steps + done, 2 * steps, value / len(problem.arrival_s))

        prices = _search(problem, knots_s, latency, steps, prices, told)
        bounds[latency] = _proven_s(problem, knots_s, latency, prices)
    quick_s = quick_bound_s(problem) * TOLERANCE
    least_s = float(np.mean(least_duration_s(problem))) * TOLERANCE
    e2e_s = max(quick_s, least_s, bounds[Latency.E2E])
    ttft_s = max(problem.fastest_s * TOLERANCE, bounds[Latency.TTFT])
    return LowerBounds(len(problem.arrival_s), quick_s, e2e_s, ttft_s, np.asarray(prices))


def _proven_s(problem: Problem, knots_s: FloatArray, latency: Latency, prices: FloatArray) -> float:
    """What prices at the knots prove about a mean latency, in seconds."""
    fine, block = fine_lattice(problem, knots_s)
    return dual_s(problem, fine, block, *at_cells(prices, knots_s, fine), latency) * TOLERANCE


def _search(
    problem: Problem,
    knots_s: FloatArray,
    latency: Latency,
    steps: int,
    before: FloatArray | None,
    on_step: Callable[[int, float], None],
) -> FloatArray:
    """Good prices at the knots, float64[2, knots]; `before` are good ones for another latency, where there are some."""
    lattice, block = rough_lattice(problem, knots_s)

    def evaluate(prices: FloatArray) -> tuple[float, FloatArray]:
        value, excess = rough_dual(problem, lattice, block, *at_cells(prices, knots_s, lattice), latency)
        return value, at_knots(excess, knots_s, lattice)

    guesses = _guesses(problem, knots_s, latency, before)
    least = np.array([problem.fastest_s, problem.fastest_s / problem.most_kv])
    return climb(evaluate, guesses, least, steps, on_step)


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
