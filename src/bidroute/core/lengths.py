"""Length classes: survival functions of output lengths, learned online (design: lengths are distributions).

A class c has S_c(θ) = P(o > θ | class c) for θ = 0 … horizon. It is the product-limit (Kaplan–Meier) estimate
over finished requests and, as censored observations, those still running; it starts from a prior that finished
requests outweigh, and forgets slowly so that it follows a drift.
"""

from __future__ import annotations

import math

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError

PRIOR_MEDIAN_TOKENS = 150.0
PRIOR_SIGMA = 1.0  # of the log-normal prior
PRIOR_WEIGHT = 4.0  # the prior counts as this many finished requests
MEMORY_REQUESTS = 4000.0  # an observation's weight falls by e after this many further ones of its class
HORIZON_TOKENS = 32_768


class LengthModel:
    """Survival functions of output lengths, one per class.

    `survival` has shape [classes, horizon+1], float64, non-increasing along θ with survival[c, 0] = 1 (every
    request makes at least one token) and survival[c, horizon] = 0. `version` grows with every change to it.
    """

    def __init__(
        self,
        classes: int = 1,
        horizon_tokens: int = HORIZON_TOKENS,
        prior_median_tokens: FloatArray | None = None,
    ) -> None:
        if classes < 1:
            raise ConfigError(f"length classes: {classes}; expected 1 or more")
        medians = np.full(classes, PRIOR_MEDIAN_TOKENS) if prior_median_tokens is None else prior_median_tokens
        self.classes = classes
        self.horizon_tokens = horizon_tokens
        self.version = 0
        self._deaths = np.zeros((classes, horizon_tokens + 2))
        self._prior_deaths = np.stack([_prior_deaths(median, horizon_tokens) for median in medians])
        self._unlearned = np.zeros(classes, dtype=np.int64)
        self._weight = np.ones(classes)  # weight of the next observation; grows instead of decaying the past
        self._learned = np.zeros(classes, dtype=np.int64)
        self.survival = np.stack([_survival(deaths, deaths) for deaths in self._prior_deaths])

    @property
    def finished(self) -> IntArray:
        """Finished requests observed so far per class, int64[classes]."""
        return self._learned + self._unlearned

    def mean_tokens(self, length_class: int) -> float:
        """Mean output length of a class, in tokens."""
        return float(self.survival[length_class].sum())

    def observe(self, length_class: int, output_tokens: int) -> None:
        """A request of this class finished with `output_tokens` (1 or more)."""
        row = min(max(output_tokens, 1), self.horizon_tokens)
        self._deaths[length_class, row] += self._weight[length_class]
        self._weight[length_class] *= math.exp(1.0 / MEMORY_REQUESTS)
        self._unlearned[length_class] += 1

    def due(self) -> bool:
        """Whether enough has finished since the last `learn` for another to be worth its time."""
        return bool(np.any(self._unlearned * 8 >= 8 + np.minimum(self._learned, 512)))

    def learn(self, running_class: IntArray, running_tokens: IntArray) -> None:
        """Re-estimate the survival functions; `running_*` describe the requests still decoding (censored).

        Both arrays have shape [n]: the class and the tokens decoded so far.
        """
        for c in range(self.classes):
            if self._unlearned[c] == 0:
                continue
            if self._weight[c] > 1e6:
                self._deaths[c] /= self._weight[c]
                self._weight[c] = 1.0
            deaths = self._deaths[c] / self._weight[c] + self._prior_deaths[c]
            censored = np.bincount(
                np.minimum(running_tokens[running_class == c], self.horizon_tokens),
                minlength=self.horizon_tokens + 2,
            )
            self.survival[c] = _survival(deaths, deaths + censored)
            self._learned[c] += self._unlearned[c]
            self._unlearned[c] = 0
        self.version += 1


def _prior_deaths(median_tokens: float, horizon_tokens: int) -> FloatArray:
    """PRIOR_WEIGHT finished requests spread as a log-normal over lengths 1 … horizon; shape [horizon+2]."""
    edges = np.log(np.arange(1, horizon_tokens + 1) + 0.5) - math.log(median_tokens)
    cumulative = np.array([0.5 * (1.0 + math.erf(x / (PRIOR_SIGMA * math.sqrt(2.0)))) for x in edges])
    cumulative[-1] = 1.0
    deaths = np.zeros(horizon_tokens + 2)
    deaths[1 : horizon_tokens + 1] = np.diff(cumulative, prepend=0.0) * PRIOR_WEIGHT
    return deaths


def _survival(deaths: FloatArray, leaving: FloatArray) -> FloatArray:
    """Product-limit estimate: deaths and everything that leaves the risk set, by length → S, shape [horizon+1]."""
    at_risk = np.cumsum(leaving[::-1])[::-1]
    hazard = np.divide(deaths, at_risk, out=np.zeros_like(deaths), where=at_risk > 1e-12)
    survival: FloatArray = np.cumprod(1.0 - np.minimum(hazard[:-1], 1.0), dtype=np.float64)
    survival[-1] = 0.0
    return survival
