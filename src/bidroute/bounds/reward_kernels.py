"""What a request is worth by the time it starts, and its best start at given token prices.

Time is a lattice of cells, as in `path_kernels`. `weights` float64[8]: what every request is worth, alpha, goodput,
latency, ttft, beta, gamma, and the horizon of the last two in seconds.
"""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.bounds.path_kernels import cheapest
from bidroute.core.queue import FloatArray, IntArray


@kernel
def worth_at(
    weights: FloatArray, wait_s: float, first_s: float, service_s: float, output_tokens: float, latest_s: float
) -> float:
    """The most that a request can be worth which starts after `wait_s`; never rises with it."""
    constant, alpha, goodput, latency, ttft, beta, gamma, horizon_s = weights
    e2e_s = wait_s + service_s
    worth = constant + alpha * output_tokens / 1000.0 + latency / (1.0 + e2e_s) + ttft / (1.0 + wait_s + first_s)
    worth += beta * max(horizon_s - e2e_s, 0.0) + gamma * max(horizon_s - wait_s, 0.0)
    if wait_s <= latest_s:
        worth += goodput
    return float(worth)


@kernel
def best_starts(
    price: FloatArray,
    low: int,
    tokens: int,
    rows: IntArray,
    arrival: IntArray,
    node: IntArray,
    held: FloatArray,
    after: FloatArray,
    cell_s: float,
    weights: FloatArray,
    first_s: float,
    request: IntArray,
    needs: FloatArray,
    gain: FloatArray,
) -> None:
    """The `gain` of each of `rows`, all of whose first blocks have `tokens`: the best of worth less cost, or 0.

    `after` float64[nodes, cells + 1] is what follows the first block costs; `needs` float64[3, n] holds the least
    duration, the output tokens and the latest wait of every `request`.
    """
    cells = price.shape[0]
    for row in rows:
        j, best = request[row], 0.0
        for s in range(arrival[row], cells + 1):
            worth = worth_at(weights, cell_s * (s - arrival[row]), first_s, needs[0, j], needs[1, j], needs[2, j])
            if worth <= best:
                break
            cost = 0.0
            if s < cells:
                cost, _ = cheapest(price, low, tokens, held[row], after[node[row]], s)
            best = max(best, worth - cost)
        gain[row] = best


@kernel
def best_entries(
    going: FloatArray,
    blocks: IntArray,
    node: IntArray,
    arrival: IntArray,
    cell_s: float,
    weights: FloatArray,
    first_s: float,
    request: IntArray,
    needs: FloatArray,
    gain: FloatArray,
    start: IntArray,
) -> None:
    """The same where what all blocks cost is in `going` float64[blocks + 1, nodes, cells + 1]; and the `start` of it,
    −1 where nothing is worth its price."""
    cells = going.shape[2] - 1
    for row in range(len(blocks)):
        j, best, chosen = request[row], 0.0, -1
        costs = going[blocks[row], node[row]]
        for s in range(arrival[row], cells + 1):
            worth = worth_at(weights, cell_s * (s - arrival[row]), first_s, needs[0, j], needs[1, j], needs[2, j])
            if worth <= best:
                break
            if worth - costs[s] > best:
                best, chosen = worth - costs[s], s
        gain[row], start[row] = best, chosen
