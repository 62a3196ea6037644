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

# The most noise: nobody could tell predictions that wild from none, and a share of 1 or more would reach 0 tokens.
_MOST = {"noisy": ("SIGMA", 10.0, "0.6"), "uniform": ("SHARE", 0.99, "0.2")}
_PREDICTORS: dict[str, type[LengthPredictor]] = {
    "oracle": Oracle,
    "noisy": HintClasses,
    "uniform": HintClasses,
    "prompt": PromptClasses,
    "hint": ClientHint,
    "none": OneClass,
}


def build_predictor(spec: str) -> LengthPredictor:
    """The predictor named `oracle`, `noisy:SIGMA`, `uniform:SHARE`, `prompt`, `hint` or `none`; ConfigError if not."""
    name, _ = _parse(spec)
    return _PREDICTORS[name]()


def predicted_tokens(spec: str, output_tokens: IntArray, seed: int) -> FloatArray | None:
    """The predictions that an experiment's requests carry, float64[n] in tokens; None where they carry none.

    The truth for `oracle`; for `noisy:SIGMA` the truth times exp(SIGMA · N(0,1)), for `uniform:SHARE` the truth times
    a number between 1 − SHARE and 1 + SHARE, both drawn from `seed`.
    """
    name, spread = _parse(spec)
    if name == "oracle":
        return output_tokens.astype(np.float64)
    random = np.random.default_rng(seed)
    if name == "noisy":
        return np.asarray(output_tokens * np.exp(spread * random.standard_normal(len(output_tokens))), dtype=np.float64)
    if name == "uniform":
        return np.asarray(output_tokens * random.uniform(1.0 - spread, 1.0 + spread, len(output_tokens)))
    return None


def _parse(spec: str) -> tuple[str, float]:
    """Name, and the spread of its noise (0 where it takes none)."""
    name, colon, value = spec.partition(":")
    if name not in _PREDICTORS or (colon and name not in _MOST):
        choices = ", ".join(f"{known}:{_MOST[known][0]}" if known in _MOST else known for known in _PREDICTORS)
        raise ConfigError(f"length predictor {spec!r} is unknown; choose from: {choices}")
    if name not in _MOST:
        return name, 0.0
    letter, most, example = _MOST[name]
    try:
        spread = float(value)
    except ValueError:
        spread = math.nan
    if not 0 <= spread <= most:
        raise ConfigError(
            f"length predictor {spec!r}: expected {name}:{letter} with {letter} 0 to {most:g}, such as {name}:{example}"
        )
    return name, spread
