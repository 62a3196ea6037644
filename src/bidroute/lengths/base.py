"""The predictor contract: from a request to a length class, and to an exact length where it is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bidroute.core.lengths import LengthModel
from bidroute.core.requests import Request


@dataclass(frozen=True, slots=True)
class LengthPrediction:
    """The class whose survival function describes the request; `exact_tokens` > 0 only when it is certain."""

    length_class: int
    exact_tokens: int = 0


class LengthPredictor(ABC):
    """Sorts requests into the classes of its `model`; the controller calls `predict` once per arrival."""

    model: LengthModel

    @abstractmethod
    def predict(self, request: Request) -> LengthPrediction:
        """The class of this request."""
