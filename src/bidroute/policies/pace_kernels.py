"""Compiled estimates of device paces. Shapes: G devices."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def marginal_pace(
    period_s: FloatArray, prior_s: FloatArray, open_leases: IntArray, least_s: FloatArray, marginal_s: FloatArray
) -> None:
    """See `pace.PaceTracker`; lowers `least_s` to what `period_s` shows and overwrites `marginal_s`, all [G]."""
    seen_s, expected_s = 0.0, 0.0
    for g in range(len(period_s)):
        if period_s[g] != prior_s[g]:
            least_s[g] = min(least_s[g], period_s[g])
            seen_s += least_s[g]
            expected_s += prior_s[g]
    share = seen_s / expected_s if expected_s > 0.0 else 1.0
    for g in range(len(period_s)):
        empty_s = least_s[g] if period_s[g] != prior_s[g] else min(share, 1.0) * prior_s[g]
        now_s = period_s[g] if open_leases[g] > 0 else empty_s
        marginal_s[g] = now_s + max(now_s - empty_s, 0.0)
