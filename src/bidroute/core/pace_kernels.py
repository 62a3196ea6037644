"""Compiled estimates of how fast devices go. Shapes: G devices; rows of `moments` are named below."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray

# Rows of `moments` float64[ROWS, G]: recent means of the period, of the period without what long iterations have in
# excess, and of the batch that had it, with the weight behind them; a slow mean of that excess; longer means of period
# and batch, of the batch squared and of their product, with their weight; the slope.
PERIOD_S, PLAIN_S, BATCH, WEIGHT, EXCESS_S = range(5)
LONG_PERIOD_S, LONG_BATCH, LONG_SQUARE, LONG_PRODUCT, LONG_WEIGHT, SLOPE_S = range(5, 11)
ROWS = 11

SMOOTHING = 0.1  # weight of the newest iteration in the recent means
LONG_SMOOTHING = 0.005  # and in the longer ones, from which the slope is learned
SLOPE_SMOOTHING = 0.02  # how far the slope goes, per iteration, towards what the longer means say
EXCESS_SMOOTHING = 0.002  # weight of the newest iteration in the mean excess
# An iteration that takes this much longer than expected does something else too: it processes prompts, mostly. Which
# device did so just now says nothing of which will next, so the excess counts as what it is on the long run. Before the
# recent means have this weight there is nothing to expect.
LONG_ITERATION = 1.25
KNOWN_WEIGHT = 0.9
RIDGE = 1.0  # variance of the batch, in requests squared, below which the slope is hardly moved
PRIOR_SLOPE = 0.01  # of the period: what one request more costs, before anything was seen
MOST_OF_PERIOD = 0.9  # that a batch may account for: an empty device needs some of it, too


@kernel
def observe_pace(
    moments: FloatArray, device: int, batch: int, periods: int, period_s: float, sees_iterations: bool
) -> None:
    """`periods` iterations of a device, with `batch` requests in it, took `period_s` each.

    `sees_iterations`: that is what these very ones took, and not a mean over more of them, as gaps between tokens are.
    """
    of = moments[:, device]
    plain_s = period_s
    if sees_iterations and of[WEIGHT] > KNOWN_WEIGHT:
        expected_s = of[PLAIN_S] + of[SLOPE_S] * max(batch - of[BATCH], 0.0)
        plain_s = min(period_s, LONG_ITERATION**periods * expected_s)
    of[EXCESS_S] += (1.0 - (1.0 - EXCESS_SMOOTHING) ** periods) * (period_s - plain_s - of[EXCESS_S])
    kept = (1.0 - SMOOTHING) ** periods
    of[WEIGHT] = kept * of[WEIGHT] + 1.0 - kept
    gain = (1.0 - kept) / of[WEIGHT]
    of[PLAIN_S] += gain * (plain_s - of[PLAIN_S])
    of[PERIOD_S] = of[PLAIN_S] + of[EXCESS_S]
    of[BATCH] += gain * (batch - of[BATCH])
    kept = (1.0 - LONG_SMOOTHING) ** periods
    of[LONG_WEIGHT] = kept * of[LONG_WEIGHT] + 1.0 - kept
    gain = (1.0 - kept) / of[LONG_WEIGHT]
    of[LONG_PERIOD_S] += gain * (plain_s - of[LONG_PERIOD_S])
    of[LONG_BATCH] += gain * (batch - of[LONG_BATCH])
    of[LONG_SQUARE] += gain * (batch * batch - of[LONG_SQUARE])
    of[LONG_PRODUCT] += gain * (batch * plain_s - of[LONG_PRODUCT])
    variance = max(of[LONG_SQUARE] - of[LONG_BATCH] ** 2, 0.0)
    covariance = of[LONG_PRODUCT] - of[LONG_BATCH] * of[LONG_PERIOD_S]
    towards = 1.0 - (1.0 - SLOPE_SMOOTHING) ** periods
    slope_s = of[SLOPE_S] + towards * (covariance - of[SLOPE_S] * variance) / (variance + RIDGE)
    of[SLOPE_S] = max(slope_s, 0.0)


@kernel
def marginal_paces(moments: FloatArray, prior_s: FloatArray, batch: IntArray, marginal_s: FloatArray) -> None:
    """See `Paces.marginal_s`; `marginal_s` [G] is overwritten."""
    seen_s, expected_s = 0.0, 0.0
    for g in range(len(prior_s)):
        if moments[LONG_WEIGHT, g] > 0.0:
            seen_s += _empty_s(moments, g)
            expected_s += prior_s[g]
    share = min(seen_s / expected_s, 1.0) if expected_s > 0.0 else 1.0
    for g in range(len(prior_s)):
        if moments[LONG_WEIGHT, g] > 0.0:
            empty_s, slope_s = _empty_s(moments, g), _slope_s(moments, g)
        else:
            empty_s = share * prior_s[g]
            slope_s = PRIOR_SLOPE * empty_s
        marginal_s[g] = empty_s + slope_s * (2 * batch[g] + 1)


@kernel
def _slope_s(moments: FloatArray, g: int) -> float:
    """Seconds that one more request adds to a period."""
    return float(min(moments[SLOPE_S, g], MOST_OF_PERIOD * moments[PLAIN_S, g] / max(moments[BATCH, g], 1.0)))


@kernel
def _empty_s(moments: FloatArray, g: int) -> float:
    """The period of an empty device, now."""
    return float(moments[PERIOD_S, g] - _slope_s(moments, g) * moments[BATCH, g])
