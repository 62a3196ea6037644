"""Classes by prompt length, the one thing that every request shows."""

from __future__ import annotations

from bidroute.core.lengths import LengthModel
from bidroute.core.requests import Request
from bidroute.lengths.base import LengthPrediction, LengthPredictor
from bidroute.lengths.bins import LogBins

PROMPT_BINS = LogBins(16, 32.0, 32_768.0)


class PromptClasses(LengthPredictor):
    """One class per logarithmic bin of prompt tokens; useful where long prompts go with long or short answers."""

    def __init__(self, bins: LogBins = PROMPT_BINS) -> None:
        self.bins = bins
        self.model = LengthModel(classes=bins.count)

    def predict(self, request: Request) -> LengthPrediction:
        """The class of the prompt's length."""
        return LengthPrediction(self.bins.index(request.prompt_tokens))
