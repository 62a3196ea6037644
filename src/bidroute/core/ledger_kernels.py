"""Compiled book-keeping of the lease ledger: every change to a row also changes its device's totals.

Rows of `columns` and of `totals` are those of `LeasePool.columns` and of `Fleet`'s totals (open leases, pending,
KV tokens used, KV tokens pending, prefill tokens, …). Lease states: 0 pending, 1 prefilling, 2 decoding.
"""

from __future__ import annotations

import math

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def count_row(columns: IntArray, totals: IntArray, device: int, row: int, sign: int) -> None:
    """Add (`sign` 1) or take away (-1) what one row contributes to its device's totals."""
    computed_tokens = columns[1, row] + columns[2, row]
    state = columns[5, row]
    totals[0, device] += sign
    if state == 0:
        totals[1, device] += sign
        totals[3, device] += sign * (computed_tokens + 1)
    else:
        totals[2, device] += sign * (computed_tokens + 1)
    if state != 2:
        totals[4, device] += sign * computed_tokens


@kernel
def change_row(columns: IntArray, totals: IntArray, device: int, row: int, decoded_tokens: int, state: int) -> None:
    """Give a row this many decoded tokens and this state."""
    for sign in (-1, 1):  # a loop, because numba would compile `count_row` anew for each constant
        count_row(columns, totals, device, row, sign)
        columns[2, row] = decoded_tokens
        columns[5, row] = state


@kernel
def advance_rows(columns: IntArray, totals: IntArray, device: int, start: int, stop: int, periods: int) -> None:
    """Every decoding row in `start` … `stop` makes `periods` more tokens."""
    for row in range(start, stop):
        if columns[5, row] == 2:
            columns[2, row] += periods
            totals[2, device] += periods


@kernel
def pace(period_s: FloatArray, devices: IntArray) -> tuple[float, float]:
    """The smallest and the mean of `period_s` [G] over `devices`."""
    smallest, total = math.inf, 0.0
    for device in devices:
        smallest = min(smallest, period_s[device])
        total += period_s[device]
    return smallest, total / len(devices)
