"""Online packing: items come one by one and are taken or left for good, by prices that are learned on the way."""

from __future__ import annotations

import numpy as np

from bidroute.core.queue import BoolArray
from bidroute.theory.packing import GrowingPacking, Packing


def first_order(packing: Packing) -> BoolArray:
    """What is taken, bool[n], with one projected subgradient step per item:
    p ← max(0, p + η (use − capacity left per item left)), η = scale·√n/rows.

    Rows are fractions of capacity and prices are in units of reward, as in the router. `scale`, the reward per share of
    capacity over all items, is the one number that is known in advance; the router tracks it.
    """
    return _run(packing, 0)


def resolving(packing: Packing, every: int) -> BoolArray:
    """What is taken, bool[n], with first-order steps until `every` items have come; then, every `every` items, at the
    prices of the LP of the past for the capacity that is left, held until the next."""
    return _run(packing, every)


def _run(packing: Packing, every: int) -> BoolArray:
    rows, items = packing.use.shape
    share = packing.use / packing.capacity[:, None]
    left = np.ones(rows)
    scale = float(packing.reward.sum() / share.sum())
    step = scale * np.sqrt(items) / rows
    price = np.zeros(rows)
    taken = np.zeros(items, dtype=np.bool_)
    past = GrowingPacking(Packing(packing.reward, share, np.ones(rows))) if every else None
    for item in range(items):
        if past and item and item % every == 0:
            capacity = np.maximum(left * item / (items - item), 1e-12)  # the past's share, were it as the coming one's
            price = past.price(item, capacity)
        wanted = packing.reward[item] > price @ share[:, item]
        taken[item] = wanted and bool(np.all(share[:, item] <= left))
        target = left / (items - item)
        if taken[item]:
            left = left - share[:, item]
        if every and item >= every:
            continue
        price = np.maximum(price + step * (wanted * share[:, item] - target), 0.0)
    return taken


def iid_requests(items: int, rows: int, seed: int) -> Packing:
    """Requests drawn alike: uses uniform on [0.5, 1.5], rewards on [0, 2], capacity for half of them."""
    random = np.random.default_rng(seed)
    use = random.uniform(0.5, 1.5, (rows, items))
    return Packing(random.uniform(0.0, 2.0, items), use, np.full(rows, 0.5 * items))
