"""The truth, for experiments: what would routing gain from perfect predictions?"""

from __future__ import annotations

import math

from bidroute.core.requests import Request
from bidroute.errors import ConfigError
from bidroute.lengths.base import LengthPrediction
from bidroute.lengths.hint_classes import HintClasses


class Oracle(HintClasses):
    """`request.predicted_tokens` is the true length: exact, and binned into classes all the same."""

    def predict(self, request: Request) -> LengthPrediction:
        """The exact length and its class. Raises ConfigError when the request does not carry it."""
        tokens = request.predicted_tokens
        if tokens is None or not (math.isfinite(tokens) and tokens >= 1):
            raise ConfigError(
                f"request {request.id}: predicted_tokens={tokens}; the oracle expects the true length, 1 or more: "
                "set it, or choose another length predictor"
            )
        return LengthPrediction(self.bins.index(tokens), exact_tokens=round(tokens))
