"""Columns of devices that process prompts, too, in chunks under a budget of tokens per iteration (docs/mixed.md).

A prompt of s tokens takes p = ⌈s/chunk⌉ periods, the last of which makes the first output token. So a request that
starts at u holds a slot, and KV that grows by chunks, for `delay` = p − 1 periods, then decodes from u + delay on as it
would elsewhere; and it takes `chunk` of the budget in each of its first p periods (the rest in the last), then 1.
"""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def chunk_tokens(budget: int, open_leases: int) -> int:
    """Prompt tokens that a device processes per period: what decoding leaves of its budget, were all its leases at it.

    The engine gives what is left to one prompt after the other, so each has all of it while it is its turn.
    """
    return max(budget - open_leases, 1)


@kernel
def prefill_delay(prompt: int, chunk: int) -> int:
    """Periods by which the first output token comes later than at the end of the first period."""
    return max(prompt - 1, 0) // chunk


@kernel
def add_prefill(
    prompt: int, chunk: int, start: int, edges_periods: IntArray, slots: FloatArray, held: FloatArray, used: FloatArray
) -> None:
    """Add a prompt that starts `start` periods from now to its column, [b]: slot-periods and KV token-periods of the
    `delay`, and the budget tokens of all its chunks. What lies beyond the horizon counts in the last bucket."""
    buckets, delay = len(edges_periods) - 1, prefill_delay(prompt, chunk)
    for b in range(buckets):
        low = max(edges_periods[b] - start, 0)
        if low > delay:
            return
        high = delay + 1 if b == buckets - 1 else max(edges_periods[b + 1] - start, 0)
        full = min(high, delay)
        if full > low:
            slots[b] += full - low
            held[b] += 0.5 * chunk * (full * (full + 1.0) - low * (low + 1.0))
            used[b] += chunk * (full - low)
        if high > delay:
            used[b] += max(prompt, 1) - chunk * delay


@kernel
def without_first(used: FloatArray, start: int, edges_periods: IntArray) -> None:
    """Take one token out of the period `start`: there the request's prompt was in the budget, and not its token."""
    b = len(edges_periods) - 2
    while b > 0 and edges_periods[b] > start:
        b -= 1
    used[b] -= 1.0
