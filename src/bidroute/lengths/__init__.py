"""Length predictors: from a request to the class whose survival function describes its output length."""

from bidroute.lengths.base import LengthPrediction, LengthPredictor
from bidroute.lengths.bins import LogBins
from bidroute.lengths.build import build_predictor, predicted_tokens
from bidroute.lengths.client_hint import ClientHint
from bidroute.lengths.hint_classes import HintClasses
from bidroute.lengths.one_class import OneClass
from bidroute.lengths.oracle import Oracle
from bidroute.lengths.prompt_classes import PromptClasses

__all__ = [
    "ClientHint",
    "HintClasses",
    "LengthPrediction",
    "LengthPredictor",
    "LogBins",
    "OneClass",
    "Oracle",
    "PromptClasses",
    "build_predictor",
    "predicted_tokens",
]
