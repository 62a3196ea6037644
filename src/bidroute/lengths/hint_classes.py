"""Classes made from a point prediction: binned, and so calibrated by what its requests then turn out to be."""

from __future__ import annotations

import math

import numpy as np

from bidroute.core.lengths import PRIOR_MEDIAN_TOKENS, LengthModel
from bidroute.core.requests import Request
from bidroute.lengths.base import LengthPrediction, LengthPredictor
from bidroute.lengths.bins import LogBins

HINT_BINS = LogBins(16, 8.0, 16_384.0)
HINT_SHAPE = 3  # a prediction is taken to be within a factor of about 1.8 until requests show otherwise


class HintClasses(LengthPredictor):
    """One class per logarithmic bin of `request.predicted_tokens`, and a last one for requests without it.

    Before any request has finished, a bin's lengths lie around its centre. A prediction that is not a positive
    finite number counts as missing: a client must not be able to stop the router with one.
    """

    def __init__(self, bins: LogBins = HINT_BINS, prior_shape: int = HINT_SHAPE) -> None:
        self.bins = bins
        medians = np.append(bins.centres(), PRIOR_MEDIAN_TOKENS)
        self.model = LengthModel(bins.count + 1, prior_median_tokens=medians, prior_shape=prior_shape)

    def hint_tokens(self, request: Request) -> float | None:
        """The prediction that came with the request, if any."""
        return request.predicted_tokens

    def predict(self, request: Request) -> LengthPrediction:
        """The class of the request's prediction."""
        tokens = self.hint_tokens(request)
        if tokens is None or not (math.isfinite(tokens) and tokens > 0):
            return LengthPrediction(self.bins.count)
        return LengthPrediction(self.bins.index(tokens))
