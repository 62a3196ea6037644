"""The quick bound: preemptive shortest-work-first on one machine as fast as the fleet (docs/bounds.md)."""

from __future__ import annotations

import heapq

import numpy as np

from bidroute.bounds.problem import Problem
from bidroute.core.queue import FloatArray

BUSY = 0.9  # a window with less work than this share of it is idle enough for capacity to be worth nothing
MARGINAL = 0.9  # work beyond this quantile of what a window serves is what more capacity would serve


def quick_bound_s(problem: Problem) -> float:
    """A lower bound on the mean E2E latency: mean busy times, plus half of each request's own least duration."""
    pieces = shortest_work_first(problem.arrival_s, problem.work_s(), float(problem.devices))
    total_work = problem.work_s()
    served = (pieces[:, 1] - pieces[:, 0]) * problem.devices / total_work[pieces[:, 2].astype(np.int64)]
    busy_s = float(np.sum(served * (pieces[:, 0] + pieces[:, 1]) / 2.0) - np.sum(problem.arrival_s))
    return busy_s / len(total_work) + float(np.mean(least_duration_s(problem))) / 2.0


def least_duration_s(problem: Problem) -> FloatArray:
    """What each request takes alone on its fastest device, float64[n]."""
    alone = [
        (kind.base_s + kind.slot_s) * problem.output_tokens + kind.token_s * problem.token_iterations
        for kind in problem.kinds
    ]
    least: FloatArray = np.min(alone, axis=0)
    return least


def shortest_work_first(arrival_s: FloatArray, work_s: FloatArray, speed: float) -> FloatArray:
    """The pieces (from, to, request) of a machine that always serves the request of least total work; float64[m, 3]."""
    waiting: list[tuple[float, int]] = []
    left = work_s.tolist()
    pieces: list[tuple[float, float, int]] = []
    now_s, arrived, n = 0.0, 0, len(left)
    while arrived < n or waiting:
        if not waiting:
            now_s = max(now_s, float(arrival_s[arrived]))
        while arrived < n and arrival_s[arrived] <= now_s:
            heapq.heappush(waiting, (float(work_s[arrived]), arrived))
            arrived += 1
        until_s = float(arrival_s[arrived]) if arrived < n else np.inf
        request = waiting[0][1]
        end_s = now_s + left[request] / speed
        if end_s <= until_s:
            heapq.heappop(waiting)
            left[request] = 0.0
        else:
            left[request] -= (until_s - now_s) * speed
            end_s = until_s
        pieces.append((now_s, end_s, request))
        now_s = end_s
    return np.array(pieces)


def time_price(problem: Problem, work_s: FloatArray, knots_s: FloatArray) -> FloatArray:
    """What a device-second is worth at each of `knots_s`: how much waiting it would save, float64[knots].

    While there is a backlog, a second more of capacity serves a second's worth of its least work w, so the worth falls
    by 1/w per second; where the fleet is idle now and then it is 0. A first guess, for the search to improve.
    """
    pieces = shortest_work_first(problem.arrival_s, work_s, float(problem.devices))
    windows = len(knots_s) - 1
    window = np.clip(np.searchsorted(knots_s, pieces[:, :2].mean(axis=1), side="right") - 1, 0, windows - 1)
    length_s, work = pieces[:, 1] - pieces[:, 0], work_s[pieces[:, 2].astype(np.int64)]
    worth = np.zeros(windows + 1)
    for at in range(windows - 1, -1, -1):
        rows = np.flatnonzero(window == at)
        width_s = knots_s[at + 1] - knots_s[at]
        if length_s[rows].sum() < BUSY * width_s:
            continue
        rows = rows[np.argsort(work[rows])]
        served = np.cumsum(length_s[rows])
        marginal = work[rows[np.searchsorted(served, MARGINAL * served[-1])]]
        worth[at] = worth[at + 1] + width_s / marginal
    return worth
