"""Predictors by name, and the predictions that an experiment's requests carry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.lengths import (
    ClientHint,
    HintClasses,
    LengthPredictor,
    OneClass,
    Oracle,
    PromptClasses,
    build_predictor,
    predicted_tokens,
)

LENGTHS = np.arange(1, 20_001)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("oracle", Oracle),
        ("noisy:0.6", HintClasses),
        ("noisy:0", HintClasses),
        ("uniform:0.2", HintClasses),
        ("prompt", PromptClasses),
        ("hint", ClientHint),
        ("none", OneClass),
    ],
)
def test_names(spec: str, kind: type[LengthPredictor]) -> None:
    assert type(build_predictor(spec)) is kind


@pytest.mark.parametrize("spec", ["", "magic", "oracle:1", "none:", "prompt:8", "Oracle"])
def test_an_unknown_name_lists_the_choices(spec: str) -> None:
    with pytest.raises(ConfigError, match="choose from: oracle, noisy:SIGMA, uniform:SHARE, prompt, hint, none"):
        build_predictor(spec)


@pytest.mark.parametrize("spec", ["noisy", "noisy:", "noisy:lots", "noisy:-1", "noisy:nan", "noisy:inf"])
def test_a_noisy_predictor_needs_a_sigma(spec: str) -> None:
    with pytest.raises(ConfigError, match="SIGMA 0 to 10"):
        build_predictor(spec)
    with pytest.raises(ConfigError, match="SIGMA 0 to 10"):
        predicted_tokens(spec, LENGTHS, 0)


@pytest.mark.parametrize("spec", ["uniform", "uniform:lots", "uniform:-1", "uniform:1", "uniform:nan"])
def test_a_uniform_predictor_needs_a_share(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"SHARE 0 to 0\.99"):
        predicted_tokens(spec, LENGTHS, 0)


def test_the_oracles_predictions_are_the_truth() -> None:
    predictions = predicted_tokens("oracle", LENGTHS, 0)
    assert predictions is not None
    assert np.array_equal(predictions, LENGTHS)


@pytest.mark.parametrize("spec", ["none", "prompt", "hint"])
def test_other_predictors_get_no_predictions(spec: str) -> None:
    assert predicted_tokens(spec, LENGTHS, 0) is None


def test_noise_is_log_normal_with_the_stated_sigma() -> None:
    predictions = predicted_tokens("noisy:0.6", LENGTHS, 7)
    assert predictions is not None
    log_error = np.log(predictions / LENGTHS)
    assert np.mean(log_error) == pytest.approx(0.0, abs=0.02)
    assert np.std(log_error) == pytest.approx(0.6, rel=0.02)
    assert np.mean(np.abs(log_error) < 0.6) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.01)


def test_noise_comes_from_the_seed() -> None:
    first, again, other = (predicted_tokens("noisy:0.3", LENGTHS, seed) for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    exact = predicted_tokens("noisy:0", LENGTHS, 1)
    assert exact is not None
    assert np.array_equal(exact, LENGTHS)


def test_uniform_noise_stays_within_its_share() -> None:
    predictions = predicted_tokens("uniform:0.2", LENGTHS, 7)
    assert predictions is not None
    factor = predictions / LENGTHS
    assert factor.min() == pytest.approx(0.8, abs=0.01)
    assert factor.max() == pytest.approx(1.2, abs=0.01)
    assert factor.mean() == pytest.approx(1.0, abs=0.01)
