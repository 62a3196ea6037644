"""The experiments: each yields one row per point, so that what is finished is kept when a long one is interrupted."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bidroute.theory.knapsack import ROUNDS, chu_beasley, descend, pack
from bidroute.theory.online import first_order, iid_requests, resolving
from bidroute.theory.packing import solve

Row = dict[str, Any]
SIZES = (250, 500, 1000, 2000, 4000, 8000, 16_000)
RESOURCES = 4
PROVEN = 1e-4  # the relative gap at which HiGHS takes an integer optimum as found
WARM_STEPS = 640  # of the instance drawn alike from which a warm start takes its prices
EVERY = (250, 50, 10)  # requests between two solutions of the re-solving rules
PER_RUN = 20  # solutions within a run of another one, however many requests


def regret(sizes: tuple[int, ...] = SIZES, seeds: int = 10) -> Iterator[Row]:
    """Regret against the hindsight LP by number of requests, first-order, and re-solving every so many requests or so
    many times in a run: mean over seeds, and the standard error of that mean."""
    for items in sizes:
        lost: dict[str, list[float]] = {}
        for seed in range(seeds):
            packing = iid_requests(items, RESOURCES, seed)
            hindsight = solve(packing).value
            online = {"first_order": first_order(packing)}
            online |= {f"every_{every}": resolving(packing, every) for every in EVERY}
            online[f"{PER_RUN}_per_run"] = resolving(packing, max(items // PER_RUN, 1))
            for rule, taken in online.items():
                lost.setdefault(rule, []).append(hindsight - packing.value(taken))
        row: Row = {"requests": items, "seeds": seeds}
        for rule, values in lost.items():
            row |= {rule: float(np.mean(values)), f"{rule}_error": float(np.std(values) / math.sqrt(len(values)))}
        yield row


def regret_slopes(rows: list[Row]) -> dict[str, float]:
    """The log-log slope of the regret of each rule."""
    rules = "first_order", *(f"every_{every}" for every in EVERY), f"{PER_RUN}_per_run"
    return {rule: slope(rows, rule) for rule in rules}


def slope(rows: list[Row], key: str) -> float:
    """The log-log slope of a regret over the number of requests."""
    x, y = np.log([row["requests"] for row in rows]), np.log([max(row[key], 1e-12) for row in rows])
    return float(np.polyfit(x, y, 1)[0])


def knapsacks(
    sizes: tuple[int, ...] = (100, 250, 500),
    rows: tuple[int, ...] = (5, 10, 30),
    tightness: tuple[float, ...] = (0.25, 0.5, 0.75),
    *,
    time_limit_s: float = 20.0,
    seeds: int = 3,
) -> Iterator[Row]:
    """LP optimum, best whole packing that HiGHS finds in time, and ours: first-order prices, best ratio first.

    Means over the seeds. `proven` counts those whose integer optimum HiGHS proved within `time_limit_s`;
    `gap_to_bound` is to what HiGHS proved that no whole packing exceeds.
    """
    for items in sizes:
        for resources in rows:
            for tight in tightness:
                found = [_knapsack(items, resources, tight, seed, time_limit_s) for seed in range(seeds)]
                mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
                proven = int(sum(one["proven"] for one in found))
                yield (
                    {"items": items, "resources": resources, "tightness": tight, "seeds": seeds}
                    | mean
                    | {"proven": proven}
                )


def _knapsack(items: int, resources: int, tight: float, seed: int, time_limit_s: float) -> Row:
    packing = chu_beasley(items, resources, tight, seed)
    began_s = time.perf_counter()
    price, _ = descend(packing, ROUNDS, items, seed)
    ours = packing.value(pack(packing, price))
    ours_s = time.perf_counter() - began_s
    relaxed, whole = solve(packing), solve(packing, integer=True, time_limit_s=time_limit_s)
    return {
        "lp": relaxed.value,
        "integer_bound": whole.bound,
        "integer": whole.value,
        "ours": ours,
        "dual": packing.dual(price),
        "gap_to_lp": 1.0 - ours / relaxed.value,
        "gap_to_bound": 1.0 - ours / whole.bound,
        "gap_to_integer": 1.0 - ours / whole.value,
        "seconds": ours_s,
        "proven": float(whole.bound - whole.value < PROVEN * whole.bound),
    }


def convergence(
    rounds: tuple[int, ...] = (10, 40, 160, 640), draws: tuple[int, ...] = (8, 32, 128), seeds: int = 5
) -> Iterator[Row]:
    """How far the dual at first-order prices is above the LP, by steps K and samples per step |M|, cold, and warm from
    the prices of an instance drawn alike; mean of seeds, as a fraction."""
    items = 500
    for steps in rounds:
        for count in draws:
            cold, warm = [], []
            for seed in range(seeds):
                packing, other = (chu_beasley(items, RESOURCES, 0.5, seed + 1000 * k) for k in range(2))
                optimum = solve(packing).value
                start, _ = descend(other, WARM_STEPS, items, seed)
                cold.append(descend(packing, steps, count, seed)[1][-1] / optimum - 1.0)
                warm.append(descend(packing, steps, count, seed, start, WARM_STEPS)[1][-1] / optimum - 1.0)
            yield {"steps": steps, "samples": count, "cold": float(np.mean(cold)), "warm": float(np.mean(warm))}
