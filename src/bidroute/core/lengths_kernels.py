"""The product-limit estimate of one length class, compiled: it runs online, over the whole horizon."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def prior_survival(length: int, per_median: float, shape: int) -> float:
    """P(o > length) of a log-logistic with median 1/per_median: 1/(1 + (length/median)^shape)."""
    odds = length * per_median
    for _ in range(shape - 1):
        odds *= length * per_median
    return 1.0 / (1.0 + odds)


@kernel
def product_limit(
    finished: FloatArray,
    running_tokens: IntArray,
    prior_median_tokens: float,
    prior_shape: int,
    prior_weight: float,
) -> FloatArray:
    """Survival S(θ) = P(o > θ), float64[horizon+1], with S(0) = 1 and S(horizon) = 0.

    `finished` float64[horizon+1] is the weight of requests that ended with θ tokens (row 0 is not read);
    `running_tokens` int64[n] are the tokens of requests that still run, each of weight 1. The prior counts as
    `prior_weight` requests, so the hazard is never 0/0: where nobody was seen, it is the prior's.
    """
    horizon = len(finished) - 1
    per_median = 1.0 / prior_median_tokens
    at_risk = finished.copy()
    for tokens in running_tokens:
        at_risk[min(max(tokens, 0), horizon)] += 1.0
    last = horizon - 1  # the longest length that anybody was seen at; beyond it there is only the prior
    remaining = at_risk[horizon]
    while last > 0 and remaining == 0.0 and at_risk[last] == 0.0:
        last -= 1
    for length in range(last, 0, -1):
        remaining += at_risk[length]
        at_risk[length] = remaining

    survival = at_risk  # in place: each row is read once more, just before it is written
    alive, prior_before = 1.0, 1.0
    for length in range(1, last + 1):
        prior_here = prior_survival(length, per_median, prior_shape)
        ending = finished[length] + prior_weight * (prior_before - prior_here)
        alive *= max(0.0, 1.0 - ending / (at_risk[length] + prior_weight * prior_before))
        survival[length] = alive
        prior_before = prior_here
    for length in range(last + 1, horizon):
        survival[length] = alive / prior_before * prior_survival(length, per_median, prior_shape)
    survival[0] = 1.0
    survival[horizon] = 0.0
    return survival
