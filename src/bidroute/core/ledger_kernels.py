"""Compiled book-keeping of the lease ledger: every change to a row also changes its device's totals.

Rows of `columns` and of `totals` are those of `LeasePool.columns` and of `Fleet`'s totals (open leases, pending,
KV tokens used, KV tokens pending, prefill tokens, …); `offset`, `count` and `rooms` are those of `LeasePool`. Lease
states: 0 pending, 1 prefilling, 2 decoding.
"""

from __future__ import annotations

import math

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray

FULL = -1


@kernel
def append_row(
    columns: IntArray,
    offset: IntArray,
    count: IntArray,
    rooms: IntArray,
    totals: IntArray,
    device: int,
    request_id: int,
    prompt_tokens: int,
    length_class: int,
    exact_tokens: int,
) -> int:
    """Add a pending row to a device's segment; returns its place within it, or FULL, and adds none, without room."""
    place = count[device]
    if place == rooms[device]:
        return FULL
    row = offset[device] + place
    columns[0, row], columns[1, row], columns[2, row] = request_id, prompt_tokens, 0
    columns[3, row], columns[4, row], columns[5, row], columns[6, row] = length_class, exact_tokens, 0, 0
    count[device] = place + 1
    count_row(columns, totals, device, row, 1)
    return int(place)


@kernel
def remove_row(
    columns: IntArray, offset: IntArray, count: IntArray, totals: IntArray, device: int, place: int
) -> tuple[int, int, int, int]:
    """Drop the row at this place of a device's segment, and put the last one there.

    Returns its prompt tokens, decoded tokens and length class, and the id of the row that is there now (its own where
    it was the last).
    """
    row, last = offset[device] + place, offset[device] + count[device] - 1
    count_row(columns, totals, device, row, -1)
    prompt_tokens, decoded_tokens, length_class = columns[1, row], columns[2, row], columns[3, row]
    for k in range(len(columns)):
        columns[k, row] = columns[k, last]
    count[device] -= 1
    return prompt_tokens, decoded_tokens, length_class, columns[0, row]


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
    if state == 0:  # thrown out: its prompt will be processed anew
        columns[6, row] = 0


@kernel
def advance_rows(columns: IntArray, totals: IntArray, device: int, start: int, stop: int, periods: int) -> None:
    """Every decoding row in `start` … `stop` makes `periods` more tokens.

    What these leave of the device's token budget, if it has one, goes to the prompts of the prefilling rows.
    """
    decoding = 0
    for row in range(start, stop):
        if columns[5, row] == 2:
            columns[2, row] += periods
            totals[2, device] += periods
            decoding += 1
    left = periods * (totals[9, device] - decoding)
    for row in range(start, stop):
        if left <= 0:
            break
        if columns[5, row] == 1:
            chunk = min(left, rest_of_prompt(columns, row))
            columns[6, row] += chunk
            left -= chunk


@kernel
def rest_of_prompt(columns: IntArray, row: int) -> int:
    """Tokens of its prompt that a lease has still to process, as far as the ledger knows."""
    return max(columns[1, row] - columns[6, row], 0) if columns[5, row] != 2 else 0


@kernel
def pace(period_s: FloatArray, devices: IntArray) -> tuple[float, float]:
    """The smallest and the mean of `period_s` [G] over `devices`."""
    smallest, total = math.inf, 0.0
    for device in devices:
        smallest = min(smallest, period_s[device])
        total += period_s[device]
    return smallest, total / len(devices)
