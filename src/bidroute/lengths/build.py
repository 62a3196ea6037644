"""Predictors by name: what the command line and the experiments ask for."""

from __future__ import annotations

import math

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError
from bidroute.lengths.base import LengthPredictor
from bidroute.lengths.client_hint import ClientHint
from bidroute.lengths.hint_classes import HintClasses
from bidroute.lengths.one_class import OneClass
from bidroute.lengths.oracle import Oracle
from bidroute.lengths.prompt_classes import PromptClasses

_LARGEST_SIGMA = 10.0  # nobody could tell predictions that wild from none
_PREDICTORS: dict[str, type[LengthPredictor]] = {
    "oracle": Oracle,
    "noisy": HintClasses,
    "prompt": PromptClasses,
    "hint": ClientHint,
    "none": OneClass,
}


def build_predictor(spec: str) -> LengthPredictor:
    """The predictor named `oracle`, `noisy:SIGMA`, `prompt`, `hint` or `none`. Raises ConfigError for others."""
    name, _ = _parse(spec)
    return _PREDICTORS[name]()


def predicted_tokens(spec: str, output_tokens: IntArray, seed: int) -> FloatArray | None:
    """The predictions that an experiment's requests carry, float64[n] in tokens; None where they carry none.

    The truth for `oracle`; for `noisy:SIGMA` the truth times exp(SIGMA · N(0,1)), drawn from `seed`.
    """
    name, sigma = _parse(spec)
    if name == "oracle":
        return output_tokens.astype(np.float64)
    if name == "noisy":
        noise = np.random.default_rng(seed).standard_normal(len(output_tokens))
        return np.asarray(output_tokens * np.exp(sigma * noise), dtype=np.float64)
    return None


def _parse(spec: str) -> tuple[str, float]:
    """Name and sigma (0 where the name takes none)."""
    name, colon, value = spec.partition(":")
    if name not in _PREDICTORS or (colon and name != "noisy"):
        choices = ", ".join("noisy:SIGMA" if known == "noisy" else known for known in _PREDICTORS)
        raise ConfigError(f"length predictor {spec!r} is unknown; choose from: {choices}")
    if name != "noisy":
        return name, 0.0
    try:
        sigma = float(value)
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma <= _LARGEST_SIGMA:
        raise ConfigError(
            f"length predictor {spec!r}: expected noisy:SIGMA with SIGMA 0 to {_LARGEST_SIGMA:g}, such as noisy:0.6"
        )
    return name, sigma
