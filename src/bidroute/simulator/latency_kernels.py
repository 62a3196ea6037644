"""How long a pass takes, from a latency model packed into one float64 array (see `latency` for the layout)."""

from __future__ import annotations

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray

AFFINE = 0.0
TABLE = 1.0
NO_LIMIT = 2**62


@kernel
def interval(knots: FloatArray, start: int, count: int, value: float) -> int:
    """The index i (0 … count−2) of the knot interval that holds `value`, or the nearest one."""
    low, high = 0, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if knots[start + middle] <= value:
            low = middle
        else:
            high = middle
    return low


@kernel
def decode_line(models: FloatArray, at: int, batch: int, kv_tokens: int) -> tuple[float, float, int]:
    """Decode time as a line in kv_tokens at this batch size.

    Returns its intercept in ns, its slope in ns per token, and the last kv_tokens it holds for.
    """
    if models[at] == AFFINE:
        return models[at + 2] + models[at + 3] * batch, models[at + 4], NO_LIMIT
    batches, knots = int(models[at + 2]), int(models[at + 3])
    batch_at = at + 4
    knot_at = batch_at + batches
    value_at = knot_at + knots
    i = interval(models, batch_at, batches, batch)
    j = interval(models, knot_at, knots, kv_tokens)
    low, high = models[batch_at + i], models[batch_at + i + 1]
    weight = (batch - low) / (high - low)
    row = value_at + i * knots + j
    first = models[row] + weight * (models[row + knots] - models[row])
    second = models[row + 1] + weight * (models[row + knots + 1] - models[row + 1])
    left, right = models[knot_at + j], models[knot_at + j + 1]
    slope = (second - first) / (right - left)
    limit = NO_LIMIT if j == knots - 2 else int(right)
    return first - slope * left, slope, limit


@kernel
def decode_ns(models: FloatArray, at: int, batch: int, kv_tokens: int) -> int:
    """One decode iteration of `batch` requests that hold `kv_tokens`, rounded to 1 ns, at least the model's minimum."""
    intercept, slope, _ = decode_line(models, at, batch, kv_tokens)
    return int(max(models[at + 1], np.floor(intercept + slope * kv_tokens + 0.5)))


@kernel
def prefill_ns(models: FloatArray, at: int, new_tokens: int) -> int:
    """The prefill of `new_tokens` prompt tokens in one pass, rounded to 1 ns."""
    if models[at] == AFFINE:
        return int(np.floor(models[at + 1] + models[at + 2] * new_tokens + 0.5))
    knots = int(models[at + 1])
    i = at + 2 + interval(models, at + 2, knots, new_tokens)
    slope = (models[i + knots + 1] - models[i + knots]) / (models[i + 1] - models[i])
    duration = models[i + knots] + slope * (new_tokens - models[i])
    return int(max(0.0, np.floor(duration + 0.5)))
