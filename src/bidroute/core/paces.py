"""How fast each device goes, and how much slower with one request more: learned from what its iterations took.

The period of a device with a batch of b is taken to be a + s·b. Recent means of the period and of the batch follow
what changes (context, a throttled GPU) through the intercept a; the slope s is learned slowly, by regression over
longer means, and stays as it is while the batch does not vary. What single iterations take far beyond that (prompts in
between) enters a as a slow mean: of devices that are alike, the one that processed a prompt just now is no slower.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.pace_kernels import (
    PERIOD_S,
    PLAIN_S,
    PRIOR_SLOPE,
    ROWS,
    SLOPE_S,
    SMOOTHING,
    WEIGHT,
    marginal_paces,
    observe_pace,
)
from bidroute.core.queue import FloatArray, IntArray


class Paces:
    """The paces of G devices. `prior_s` float64[G] counts, as one iteration, until there are observations."""

    def __init__(self) -> None:
        self.prior_s: FloatArray = np.zeros(0)
        self.moments: FloatArray = np.zeros((ROWS, 0))

    def join(self, device: Device) -> None:
        """One device more."""
        column = np.zeros((ROWS, 1))
        column[PERIOD_S] = column[PLAIN_S] = device.period_s
        column[WEIGHT], column[SLOPE_S] = SMOOTHING, PRIOR_SLOPE * device.period_s
        self.prior_s = np.append(self.prior_s, device.period_s)
        self.moments = np.append(self.moments, column, axis=1)

    @property
    def period_s(self) -> FloatArray:
        """Recent mean duration of an iteration, float64[G]."""
        period_s: FloatArray = self.moments[PERIOD_S]
        return period_s

    def observe(
        self, device: int, batch: int, periods: int, duration_s: float, *, sees_iterations: bool = True
    ) -> None:
        """`periods` iterations of a device, with `batch` requests in it, took `duration_s` in all.

        `sees_iterations` False: that comes from a mean over more of them, in which no single one stands out.
        """
        if periods > 0 and duration_s > 0:
            observe_pace(self.moments, device, batch, periods, duration_s / periods, sees_iterations)

    def marginal_s(self, batch: IntArray) -> FloatArray:
        """Seconds that all requests together wait longer, per token that one more makes beside `batch` int64[G] others.

        That is a + s·(b + 1) for itself and s for each of the others, float64[G]. A device that has not run yet is
        expected to fall short of its prior by as much as the others did.
        """
        marginal_s = np.empty(len(batch))
        marginal_paces(self.moments, self.prior_s, batch, marginal_s)
        return marginal_s

    def frozen(self) -> Paces:
        """A copy of what is known now, to be read in another thread."""
        paces = copy(self)
        paces.moments = self.moments.copy()
        return paces
