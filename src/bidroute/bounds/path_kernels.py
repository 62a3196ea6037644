"""The cheapest way of each request through token prices that change with time, and what all of them buy.

Time is a lattice of equal cells (docs/bounds.md). A request makes its tokens in blocks; a block that starts in cell s
ends in cell s + low + w for some w in 0 … widths − 1, and pays for all its tokens the least prices of that time:
`price[s, w]` holds the least ρ and the least κ. Beyond the last cell everything is free.
"""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def least_prices(rho: FloatArray, kappa: FloatArray, low: int, price: FloatArray) -> None:
    """Fill `price` float64[cells, widths, 2] with the least of ρ and of κ in the cells s … s + low + w."""
    cells, widths, _ = price.shape
    for s in range(cells):
        end = s + low
        least_rho = least_kappa = 0.0
        if end < cells:
            least_rho, least_kappa = rho[s], kappa[s]
            for cell in range(s + 1, end + 1):
                least_rho, least_kappa = min(least_rho, rho[cell]), min(least_kappa, kappa[cell])
        for w in range(widths):
            if end + w < cells:
                least_rho, least_kappa = min(least_rho, rho[end + w]), min(least_kappa, kappa[end + w])
            else:
                least_rho = least_kappa = 0.0
            price[s, w, 0], price[s, w, 1] = least_rho, least_kappa


@kernel
def cheapest(price: FloatArray, low: int, tokens: int, held: float, after: FloatArray, s: int) -> tuple[float, int]:
    """Cost and width of the cheapest block from cell s on, with `after` float64[cells + 1] for what follows it.

    `held` is the KV of its first token; the others hold more.
    """
    cells, widths, _ = price.shape
    best, chosen = 1e300, 0
    for w in range(widths):
        cost = tokens * (price[s, w, 0] + held * price[s, w, 1]) + after[min(s + low + w, cells)]
        if cost < best:
            best, chosen = cost, w
    return best, chosen


@kernel
def add_block(
    price: FloatArray,
    low: int,
    tokens: int,
    held: float,
    after: FloatArray,
    cell_s: float,
    going: FloatArray,
    value: FloatArray,
    width: IntArray,
    waits: IntArray,
) -> None:
    """One block more: costs of `going` on at once and with the freedom to wait (`value`), float64[cells + 1] each.

    `width` int64[cells] is that of the block, `waits` int64[cells] whether it is better to wait.
    """
    cells = price.shape[0]
    going[cells] = value[cells] = 0.0
    for s in range(cells - 1, -1, -1):
        going[s], width[s] = cheapest(price, low, tokens, held, after, s)
        waits[s] = int(cell_s + value[s + 1] < going[s])
        value[s] = cell_s + value[s + 1] if waits[s] else going[s]


@kernel
def first_blocks(
    price: FloatArray,
    low: int,
    tokens: int,
    rows: IntArray,
    arrival: IntArray,
    node: IntArray,
    held: FloatArray,
    after: FloatArray,
    cell_s: float,
    cost: FloatArray,
) -> None:
    """The `cost` of the cheapest way of each of `rows`, all of whose first blocks have `tokens`.

    `after` float64[nodes, cells + 1] holds what follows the first block, at the KV of `node`.
    """
    cells = price.shape[0]
    for row in rows:
        least = cell_s * (cells - arrival[row])
        s = arrival[row]
        while s < cells and cell_s * (s - arrival[row]) < least:
            best, _ = cheapest(price, low, tokens, held[row], after[node[row]], s)
            least = min(least, cell_s * (s - arrival[row]) + best)
            s += 1
        cost[row] = least


@kernel
def flow(
    width: IntArray,
    waits: IntArray,
    may_wait: bool,
    low: int,
    tokens: int,
    held: float,
    mass: FloatArray,
    out: FloatArray,
    use: FloatArray,
) -> None:
    """Send `mass` float64[cells + 1] requests that have a block to make along their choices into `out`.

    `use` float64[2, cells] gains the block's tokens, evenly over its cells, and the KV they hold.
    """
    cells = len(width)
    for s in range(cells):
        amount = mass[s]
        if amount == 0.0:
            continue
        if may_wait and waits[s]:
            mass[s + 1] += amount
            continue
        end = min(s + low + width[s], cells)
        out[end] += amount
        share = amount * tokens / max(end - s, 1)
        for cell in range(s, max(end, s + 1)):
            use[0, cell] += share
            use[1, cell] += share * held
