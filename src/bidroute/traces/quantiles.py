"""A length distribution from its published percentiles and mean."""

from __future__ import annotations

import math

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError

_ENDS = 4.0  # the shortest and the longest length stand at these standard deviations of the normal
_SCORES = np.linspace(-_ENDS, _ENDS, 4001)
_LEVELS = np.array([0.5 * math.erfc(-score / math.sqrt(2.0)) for score in _SCORES])
_LEVELS[[0, -1]] = 0.0, 1.0
_KNOTS = np.interp([0.0, 0.5, 0.9, 0.99, 1.0], _LEVELS, _SCORES)


class FittedLengths:
    """A monotone quantile function: piecewise log-normal through published percentiles, bent to fit the mean.

    Between two neighbouring percentiles, a fraction t of the way from one to the next in normal scores, the log
    length is t^bend of the way; with a bend of 1 each piece is log-normal. Every bend keeps the percentiles
    exact, and the mean falls as it grows, so one number fits the mean. The `shortest` and `longest` lengths are
    not published, but chosen.
    """

    def __init__(self, *, shortest: int, p50: float, p90: float, p99: float, longest: int, mean: float) -> None:
        points = np.array([shortest, p50, p90, p99, longest], dtype=np.float64)
        if not (shortest >= 1 and np.all(np.diff(points) > 0)):
            raise ConfigError(f"percentiles {points.tolist()}; expected 1 or more, and growing")
        self._log_points = np.log(points)
        self.bend = self._fit(mean)

    def quantile(self, levels: FloatArray) -> FloatArray:
        """Lengths at these levels in [0, 1], as real numbers of tokens."""
        return self._quantile(levels, self.bend)

    def sample(self, count: int, random: np.random.Generator) -> IntArray:
        """`count` lengths in random order, one from each of `count` equal slices of the distribution.

        So any sample has the percentiles of the whole, and workloads from different seeds differ in order and
        timing, not in load.
        """
        levels = (random.permutation(count) + random.random(count)) / count
        return np.rint(self.quantile(levels)).astype(np.int64)

    def _quantile(self, levels: FloatArray, bend: float) -> FloatArray:
        scores = np.interp(levels, _LEVELS, _SCORES)
        piece = np.clip(np.searchsorted(_KNOTS, scores, side="right") - 1, 0, len(_KNOTS) - 2)
        fraction = (scores - _KNOTS[piece]) / (_KNOTS[piece + 1] - _KNOTS[piece])
        low, high = self._log_points[piece], self._log_points[piece + 1]
        lengths: FloatArray = np.exp(low + (high - low) * fraction**bend)
        return lengths

    def _fit(self, mean: float) -> float:
        """Bisection on the log of the bend; raises ConfigError when no bend reaches the mean."""
        levels = (np.arange(20_000, dtype=np.float64) + 0.5) / 20_000
        low, high = -4.0, 4.0
        if not self._quantile(levels, math.exp(high)).mean() < mean < self._quantile(levels, math.exp(low)).mean():
            raise ConfigError(f"mean length {mean} does not go with its percentiles; check them")
        for _ in range(30):
            middle = 0.5 * (low + high)
            if self._quantile(levels, math.exp(middle)).mean() > mean:
                low = middle
            else:
                high = middle
        return math.exp(0.5 * (low + high))
