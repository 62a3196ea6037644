"""The lattice of time on which requests buy their tokens, and what blocks of tokens cost on it at least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.bounds.path_kernels import least_prices
from bidroute.core.queue import FloatArray

SLACK = 1e-9  # of a cell, so that rounding errors never make a bound too high


@dataclass(frozen=True, slots=True)
class Lattice:
    """`cells` cells of `cell_s` seconds. A token takes between `fastest_s` and `slowest_s` while its request runs.

    In the lattice a block of q tokens starts in the cell s = ⌊start less a wait⌋ and ends in the cell ⌊end⌋, s + d with
    ⌊q·fastest⌋ ≤ d ≤ ⌈q·slowest⌉ + 1 cells (docs/bounds.md).
    """

    cells: int
    cell_s: float
    fastest_s: float
    slowest_s: float

    def low(self, tokens: int) -> int:
        """The fewest cells between the start and the end of a block."""
        return max(int(np.floor(tokens * self.fastest_s / self.cell_s - SLACK)), 0)

    def widths(self, tokens: int) -> int:
        """How many different distances there may be between the start and the end of a block."""
        return int(np.ceil(tokens * self.slowest_s / self.cell_s + SLACK)) + 2 - self.low(tokens)

    def prices(self, rho: FloatArray, kappa: FloatArray, tokens: int) -> FloatArray:
        """The least prices that a block of `tokens` meets, float64[cells, widths, 2] (see `path_kernels`)."""
        price = np.empty((self.cells, self.widths(tokens), 2))
        least_prices(rho, kappa, self.low(tokens), price)
        return price
