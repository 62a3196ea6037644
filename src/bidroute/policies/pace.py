"""How much decode time one more request costs on each device."""

from __future__ import annotations

import numpy as np

from bidroute.core.fleet import Fleet
from bidroute.core.queue import FloatArray
from bidroute.policies.pace_kernels import marginal_pace


class PaceTracker:
    """Seconds that all requests together wait longer, per token that one more request makes on a device.

    With a period of a + s·b for a batch of b, a request joining b others spends a + s·(b+1) on each of its tokens
    itself, and delays each of the others by s: a + 2·s·b, but for the one s, is twice the present period less
    that of an empty device. The shortest period ever seen stands for the latter, and an empty device is expected to
    run at it. One that has not run yet is expected to fall short of its prior by as much as the others did.
    """

    def __init__(self) -> None:
        self.least_s: FloatArray = np.zeros(0)
        self._prior_s: FloatArray = np.zeros(0)

    def marginal_s(self, fleet: Fleet) -> FloatArray:
        """Marginal seconds per token on each device, float64[G]."""
        if len(self._prior_s) != len(fleet):
            self._prior_s = np.array([ledger.device.period_s for ledger in fleet.ledgers])
            new = self._prior_s[len(self.least_s) :]
            self.least_s = np.concatenate([self.least_s, new])
        marginal_s = np.empty(len(fleet))
        marginal_pace(fleet.period_s, self._prior_s, fleet.open_leases, self.least_s, marginal_s)
        return marginal_s
