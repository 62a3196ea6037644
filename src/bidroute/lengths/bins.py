"""Logarithmic bins: token counts that differ by less than a factor share a class."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LogBins:
    """`count` bins of equal ratio between `low_tokens` and `high_tokens`; the first and the last are open-ended."""

    count: int
    low_tokens: float
    high_tokens: float

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"length bins: {self.count}; expected 1 or more")
        if not 0 < self.low_tokens < self.high_tokens < math.inf:
            raise ConfigError(
                f"length bins from {self.low_tokens} to {self.high_tokens} tokens; expected 0 < low < high"
            )

    @property
    def ratio(self) -> float:
        """Upper over lower edge of a bin."""
        return float((self.high_tokens / self.low_tokens) ** (1.0 / self.count))

    def index(self, tokens: float) -> int:
        """The bin of a finite token count; anything below the first edge is in bin 0."""
        if tokens <= self.low_tokens:
            return 0
        return min(int(math.log(tokens / self.low_tokens) / math.log(self.ratio)), self.count - 1)

    def centres(self) -> FloatArray:
        """Geometric centre of each bin in tokens, float64[count]."""
        exponents = np.arange(self.count, dtype=np.float64) + 0.5
        centres: FloatArray = self.low_tokens * self.ratio**exponents
        return centres
