"""Each predictor's classes, and what clients can send."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.lengths import PRIOR_MEDIAN_TOKENS
from bidroute.core.requests import Request
from bidroute.errors import ConfigError
from bidroute.lengths import ClientHint, HintClasses, LogBins, OneClass, Oracle, PromptClasses

NOBODY = np.zeros(0, dtype=np.int64)


def request(prompt: int = 100, *, predicted: float | None = None, limit: int | None = None) -> Request:
    return Request(1, 0.0, prompt, max_tokens=limit, predicted_tokens=predicted)


# --- bins -----------------------------------------------------------------------------------------------------


def test_bins_have_equal_ratios_and_open_ends() -> None:
    bins = LogBins(3, 10.0, 10_000.0)
    assert bins.ratio == pytest.approx(10.0)
    assert bins.centres() == pytest.approx([31.6228, 316.228, 3162.28], rel=1e-5)
    assert [bins.index(tokens) for tokens in (0, 5, 99, 101, 9_000, 1e12)] == [0, 0, 0, 1, 2, 2]


@given(count=st.integers(1, 40), tokens=st.floats(1e-3, 1e9), more=st.floats(1e-3, 1e9))
def test_bins_keep_the_order_of_lengths(count: int, tokens: float, more: float) -> None:
    bins = LogBins(count, 8.0, 16_384.0)
    assert 0 <= bins.index(tokens) < count
    assert (bins.index(tokens) <= bins.index(more)) or tokens > more


@given(count=st.integers(1, 40))
def test_a_bins_centre_lies_in_it(count: int) -> None:
    bins = LogBins(count, 8.0, 16_384.0)
    assert [bins.index(float(centre)) for centre in bins.centres()] == list(range(count))


@pytest.mark.parametrize(("count", "low", "high"), [(0, 1.0, 2.0), (1, 0.0, 2.0), (1, 3.0, 2.0), (1, 1.0, math.inf)])
def test_impossible_bins_are_refused(count: int, low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="length bins"):
        LogBins(count, low, high)


# --- predictors -----------------------------------------------------------------------------------------------


def test_one_class_puts_everything_in_class_zero() -> None:
    predictor = OneClass()
    assert predictor.model.classes == 1
    assert predictor.predict(request(5)) == predictor.predict(request(50_000, predicted=9.0, limit=3))


def test_prompt_classes_follow_the_prompt_alone() -> None:
    predictor = PromptClasses()
    classes = [predictor.predict(request(prompt)).length_class for prompt in (0, 32, 500, 5_000, 32_768, 10**6)]
    assert classes == sorted(classes)
    assert classes[0] == 0
    assert classes[-1] == predictor.model.classes - 1
    assert predictor.predict(request(500, predicted=9.0)) == predictor.predict(request(500))


def test_hints_are_binned_and_start_at_their_bins_centre() -> None:
    predictor = HintClasses()
    for index, centre in enumerate(predictor.bins.centres()):
        prediction = predictor.predict(request(predicted=float(centre)))
        assert prediction.length_class == index
        assert prediction.exact_tokens == 0
        assert predictor.model.survival[index, round(centre)] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("hint", [None, 0.0])
def test_a_missing_hint_has_a_class_of_its_own(hint: float | None) -> None:
    for predictor in (HintClasses(), ClientHint()):
        prediction = predictor.predict(request(predicted=hint))
        assert prediction.length_class == predictor.bins.count
        assert predictor.model.survival[-1, round(PRIOR_MEDIAN_TOKENS)] == pytest.approx(0.5)


def test_client_hint_prefers_the_prediction_to_the_limit() -> None:
    predictor = ClientHint()
    by_limit = predictor.predict(request(limit=4096))
    assert by_limit.length_class == predictor.bins.index(4096)
    assert predictor.predict(request(predicted=50.0, limit=4096)).length_class == predictor.bins.index(50)


def test_oracle_knows_the_exact_length_and_its_class() -> None:
    predictor = Oracle()
    prediction = predictor.predict(request(predicted=129.0))
    assert prediction.exact_tokens == 129
    assert prediction.length_class == HintClasses().predict(request(predicted=129.0)).length_class


@pytest.mark.parametrize("truth", [None, 0.0])
def test_oracle_refuses_a_request_without_the_truth(truth: float | None) -> None:
    with pytest.raises(ConfigError, match="expects the true length"):
        Oracle().predict(request(predicted=truth))


# --- calibration ----------------------------------------------------------------------------------------------


def test_predictions_that_are_three_times_too_long_are_calibrated_within_fifty_requests() -> None:
    """Every class has a mean of a third of its centre, in classes that have not been seen as well."""
    predictor = HintClasses()
    rng = np.random.default_rng(0)
    for predicted in rng.lognormal(math.log(600), 0.5, 50):
        length_class = predictor.predict(request(predicted=predicted)).length_class
        predictor.model.observe(length_class, int(predicted / 3))
        if predictor.model.due():
            predictor.model.learn(NOBODY, NOBODY)
    for predicted in (60.0, 200.0, 600.0, 2000.0):
        length_class = predictor.predict(request(predicted=predicted)).length_class
        assert predictor.model.mean_tokens(length_class) == pytest.approx(predicted / 3, rel=0.5)


def test_noisy_predictions_order_lengths_sensibly_within_the_first_hundred_requests() -> None:
    """Log-normal noise of 0.6 on lengths that span 30 to 1000: means rise with the class and stay near the truth."""
    predictor = HintClasses()
    rng = np.random.default_rng(4)
    lengths = np.exp(rng.uniform(math.log(30), math.log(1000), 100))
    for tokens, noise in zip(lengths, np.exp(0.6 * rng.standard_normal(100)), strict=True):
        length_class = predictor.predict(request(predicted=tokens * noise)).length_class
        predictor.model.observe(length_class, max(1, int(tokens)))
        if predictor.model.due():
            predictor.model.learn(NOBODY, NOBODY)
    means = [predictor.model.mean_tokens(predictor.bins.index(tokens)) for tokens in (40, 150, 400, 900)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(50, rel=0.6)
    assert means[3] == pytest.approx(600, rel=0.6)
