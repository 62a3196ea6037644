"""Compiled book-keeping of the waiting queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bidroute._kernels import kernel

if TYPE_CHECKING:
    from bidroute.core.queue import FloatArray, IntArray


@kernel
def move_last_row(ints: IntArray, floats: FloatArray, row: int, last: int) -> int:
    """Put the last row into the place of another, [rows, n] both; returns its id."""
    for k in range(len(ints)):
        ints[k, row] = ints[k, last]
    for k in range(len(floats)):
        floats[k, row] = floats[k, last]
    return int(ints[0, row])
