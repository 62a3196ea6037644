"""No prediction at all: every request has the same survival function."""

from __future__ import annotations

from bidroute.core.lengths import LengthModel
from bidroute.core.requests import Request
from bidroute.lengths.base import LengthPrediction, LengthPredictor


class OneClass(LengthPredictor):
    """All requests are alike; what they do from here on follows from the tokens they have produced."""

    def __init__(self) -> None:
        self.model = LengthModel(classes=1)

    def predict(self, request: Request) -> LengthPrediction:
        """Class 0."""
        return LengthPrediction(0)
