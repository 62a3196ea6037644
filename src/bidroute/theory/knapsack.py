"""Multidimensional knapsacks by the recipe of Chu and Beasley (1998), and a packing by first-order prices."""

from __future__ import annotations

import numpy as np

from bidroute.core.queue import BoolArray, FloatArray
from bidroute.theory.packing import Packing

ROUNDS = 2000


def chu_beasley(items: int, rows: int, tightness: float, seed: int) -> Packing:
    """Uses are whole numbers uniform on [1, 1000], capacities `tightness` of their sums, and rewards the mean use of an
    item plus 500 times a uniform number: items that take more are worth more, which makes the instance hard."""
    random = np.random.default_rng(seed)
    use = random.integers(1, 1001, (rows, items)).astype(np.float64)
    reward = np.floor(use.mean(axis=0) + 500.0 * random.uniform(0.0, 1.0, items))
    return Packing(reward, use, np.floor(tightness * use.sum(axis=1)))


def descend(
    packing: Packing, rounds: int, draws: int, seed: int, start: FloatArray | None = None, before: int = 0
) -> tuple[FloatArray, FloatArray]:
    """Prices after `rounds` projected subgradient steps with `draws` sampled items each, and the best dual value after
    each round, float64[rounds]; the prices are the mean over the last half.

    A warm start goes on from the prices `start` as after `before` steps, which have made its own steps shorter.
    """
    random = np.random.default_rng(seed)
    rows, items = packing.use.shape
    share = packing.use / packing.capacity[:, None]
    scale = float(packing.reward.sum() / share.sum())
    price = np.zeros(rows) if start is None else start * packing.capacity
    total, best, values = np.zeros(rows), np.inf, np.empty(rounds)
    for done in range(rounds):
        chosen = random.permutation(items)[:draws]
        wanted = packing.reward[chosen] > price @ share[:, chosen]
        excess = share[:, chosen] @ wanted * (items / len(chosen)) - 1.0
        size = float(np.sqrt(np.mean(excess**2)))
        price = np.maximum(price + 0.5 * scale / np.sqrt(1.0 + done + before) * excess / max(size, 1e-12), 0.0)
        if done >= rounds // 2:
            total += price
        mean = total / max(done + 1 - rounds // 2, 1) if done >= rounds // 2 else price
        best = min(best, packing.dual(mean / packing.capacity))
        values[done] = best
    return total / (rounds - rounds // 2) / packing.capacity, values


def pack(packing: Packing, price: FloatArray) -> BoolArray:
    """Items by reward per price paid, best first, as long as they fit; bool[n]."""
    cost = price @ packing.use
    order = np.argsort(-packing.reward / np.maximum(cost, 1e-300))
    left = packing.capacity.copy()
    taken = np.zeros(len(order), dtype=np.bool_)
    for item in order:
        if np.all(packing.use[:, item] <= left):
            left -= packing.use[:, item]
            taken[item] = True
    return taken
