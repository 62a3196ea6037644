"""Length classes: closed forms, recovery of known distributions, censoring, drift, structure."""

from __future__ import annotations

import math
import time
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core import lengths as lengths_module
from bidroute.core.lengths import MEMORY_REQUESTS, PRIOR_MEDIAN_TOKENS, PRIOR_WEIGHT, LengthModel
from bidroute.core.lengths_kernels import product_limit
from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError

NOBODY = np.zeros(0, dtype=np.int64)


def taught(lengths: IntArray, *, horizon: int = 4096, length_class: int = 0, classes: int = 1) -> LengthModel:
    model = LengthModel(classes, horizon)
    for tokens in lengths:
        model.observe(length_class, int(tokens))
        if model.due():
            model.learn(NOBODY, NOBODY)
    return model


def plain_product_limit(
    finished: FloatArray, running: IntArray, median: float, shape: int, weight: float
) -> FloatArray:
    """The kernel's plain twin, straight from the definition of the estimate."""
    horizon = len(finished) - 1
    prior = 1.0 / (1.0 + (np.arange(horizon + 1) / median) ** shape)
    survival = np.ones(horizon + 1)
    for length in range(1, horizon + 1):
        ending = finished[length] + weight * (prior[length - 1] - prior[length])
        at_risk = finished[length:].sum() + np.sum(running >= length) + weight * prior[length - 1]
        survival[length] = survival[length - 1] * (1.0 - ending / at_risk)
    survival[horizon] = 0.0
    return survival


# --- closed forms ---------------------------------------------------------------------------------------------


def test_before_any_data_survival_is_the_log_logistic_prior() -> None:
    model = LengthModel(horizon_tokens=1000)
    theta = np.arange(1000)
    assert model.survival[0, :1000] == pytest.approx(1.0 / (1.0 + (theta / PRIOR_MEDIAN_TOKENS) ** 2), rel=1e-12)
    assert model.survival[0, 1000] == 0.0
    assert model.survival[0, 150] == pytest.approx(0.5)
    assert model.version == 0


def test_kaplan_meier_by_hand_with_a_vanishing_prior() -> None:
    """Lengths 2, 3, 3, 5 and two running at 3 and 4: S = 1, 1, 5/6, 5/6 · 3/5, same, same · 0."""
    finished = np.array([0.0, 0, 1, 2, 0, 1, 0, 0])
    survival = product_limit(finished, np.array([3, 4]), 3.0, 2, 1e-12)
    assert survival[:5] == pytest.approx([1, 1, 5 / 6, 0.5, 0.5], abs=1e-9)
    assert survival[5:] == pytest.approx([0, 0, 0], abs=1e-9)


def test_running_requests_count_at_the_length_they_have_survived() -> None:
    """A request that has made 3 tokens and runs on has survived length 3, and says nothing about length 4."""
    finished = np.array([0.0, 0, 0, 1, 1, 0, 0, 0])
    at_three = product_limit(finished, np.array([3]), 3.0, 2, 1e-12)
    at_two = product_limit(finished, np.array([2]), 3.0, 2, 1e-12)
    assert at_three[3] == pytest.approx(2 / 3)
    assert at_two[3] == pytest.approx(1 / 2)


def test_beyond_everything_seen_the_hazard_is_the_priors() -> None:
    finished = np.zeros(1001)
    finished[7] = 5.0
    survival = product_limit(finished, np.array([60]), 40.0, 2, 4.0)
    prior = product_limit(np.zeros(1001), NOBODY, 40.0, 2, 4.0)
    assert survival[61:1000] / survival[60] == pytest.approx(prior[61:1000] / prior[60], rel=1e-9)


def test_one_running_request_beyond_the_data_does_not_live_for_ever() -> None:
    """Plain Kaplan–Meier would hold S flat from there to the horizon, and its mean would be thousands."""
    model = taught(np.full(100, 50), horizon=32_768)
    model.observe(0, 50)
    for _ in range(100):
        model.observe(0, 50)
    model.learn(np.array([0]), np.array([2000]))
    assert model.mean_tokens(0) < 100


@given(
    lengths=st.lists(st.integers(1, 40), max_size=30),
    running=st.lists(st.integers(0, 60), max_size=20),
    median=st.floats(1.0, 100.0),
    shape=st.integers(2, 5),
)
@settings(deadline=None)
def test_kernel_equals_its_plain_twin(lengths: list[int], running: list[int], median: float, shape: int) -> None:
    finished = np.bincount(np.array(lengths, dtype=np.int64), minlength=41).astype(np.float64)
    at = np.array(running, dtype=np.int64)
    fast = product_limit(finished, at, median, shape, 4.0)
    assert fast == pytest.approx(plain_product_limit(finished, at, median, shape, 4.0), rel=1e-9, abs=1e-12)


# --- structure ------------------------------------------------------------------------------------------------


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 400)), max_size=60),
    running=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), max_size=20),
)
@settings(deadline=None)
def test_survival_starts_at_one_never_rises_and_ends_at_zero(
    events: list[tuple[int, int]], running: list[tuple[int, int]]
) -> None:
    model = LengthModel(classes=3, horizon_tokens=256)
    for length_class, tokens in events:
        model.observe(length_class, tokens)
    pairs = np.array(running, dtype=np.int64).reshape(-1, 2)
    model.learn(pairs[:, 0], pairs[:, 1])
    assert np.all(np.isfinite(model.survival))
    assert np.all(model.survival[:, 0] == 1.0)
    assert np.all(model.survival[:, -1] == 0.0)
    assert np.all(np.diff(model.survival, axis=1) <= 0.0)
    assert model.finished.sum() == len(events)


def test_lengths_outside_the_horizon_are_clipped_into_it() -> None:
    model = LengthModel(horizon_tokens=100)
    for tokens in (0, -5, 1_000_000):
        model.observe(0, tokens)
    model.learn(np.array([0, 0]), np.array([5_000, 0]))
    assert model.finished[0] == 3
    assert 0 < model.mean_tokens(0) <= 100


def test_the_same_observations_give_the_same_survival() -> None:
    lengths = np.random.default_rng(1).integers(1, 500, 200)
    assert np.array_equal(taught(lengths).survival, taught(lengths).survival)


# --- what it learns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [28.0, 211.0, 3000.0])
def test_recovers_a_known_distribution(mean: float) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.geometric(1.0 / mean, 4000)
    model = taught(lengths, horizon=32_768)
    theta = np.arange(0, 32_768)
    truth = (1.0 - 1.0 / mean) ** theta
    assert np.max(np.abs(model.survival[0, :-1] - truth)) < 0.035  # Kolmogorov–Smirnov band of the memory's size
    assert model.mean_tokens(0) == pytest.approx(mean, rel=0.06)


@pytest.mark.parametrize("mean", [28.0, 3000.0])
def test_a_badly_wrong_prior_is_gone_after_ten_requests(mean: float) -> None:
    """Averaged over seeds, so that what is left is bias; the prior's own mean is 236 tokens."""
    means = []
    for seed in range(30):
        lengths = np.maximum(1, np.random.default_rng(seed).lognormal(math.log(mean) - 0.32, 0.8, 10))
        means.append(taught(lengths.astype(np.int64), horizon=32_768).mean_tokens(0))
    assert np.mean(means) == pytest.approx(mean, rel=0.25)


def test_censoring_corrects_the_start_up_bias_towards_short_lengths() -> None:
    """600 exponential requests start together; at token 100 only the short ones have finished."""
    rng = np.random.default_rng(5)
    lengths = rng.geometric(1.0 / 300.0, 600)
    over = lengths[lengths <= 100]
    running = np.full(600 - len(over), 100)
    censored, naive = LengthModel(), LengthModel()
    for tokens in over:
        censored.observe(0, int(tokens))
        naive.observe(0, int(tokens))
    censored.learn(np.zeros(len(running), dtype=np.int64), running)
    naive.learn(NOBODY, NOBODY)
    truth = (1.0 - 1.0 / 300.0) ** 100
    assert censored.survival[0, 100] == pytest.approx(truth, abs=0.05)
    assert naive.survival[0, 100] < 0.2
    assert censored.mean_tokens(0) == pytest.approx(300, rel=0.4)
    assert naive.mean_tokens(0) < 100


def test_running_requests_alone_raise_a_prior_that_is_too_short() -> None:
    model = LengthModel()
    model.observe(0, 40)
    model.learn(np.zeros(100, dtype=np.int64), np.full(100, 1500))
    assert model.survival[0, 1500] > 0.8
    assert model.mean_tokens(0) > 1500


def test_follows_a_drift() -> None:
    rng = np.random.default_rng(9)
    before, after = rng.geometric(1 / 100, 4000), rng.geometric(1 / 800, int(2 * MEMORY_REQUESTS))
    model = taught(np.concatenate([before, after]), horizon=16_384)
    expected = 800 - 700 * math.exp(-2.0) * (1 - math.exp(-4000 / MEMORY_REQUESTS)) / (
        1 - math.exp(-12_000 / MEMORY_REQUESTS)
    )
    assert model.mean_tokens(0) == pytest.approx(expected, rel=0.06)


def test_weights_that_grow_for_ever_stay_finite() -> None:
    """The newest observation's weight grows by e per MEMORY_REQUESTS; unchecked it would overflow."""
    model = LengthModel(horizon_tokens=64)
    for index in range(120_000):
        model.observe(0, 10 + index % 3)
    assert float(model._weight[0]) <= 1e6
    model.learn(NOBODY, NOBODY)
    assert np.all(np.isfinite(model.survival))
    assert model.mean_tokens(0) == pytest.approx(11.0, rel=0.01)


def test_the_newest_observation_counts_as_one_request() -> None:
    """One finished request against PRIOR_WEIGHT prior ones, and one running one of weight 1."""
    model = LengthModel(horizon_tokens=1000, prior_median_tokens=np.array([500.0]))
    model.observe(0, 1)
    model.learn(np.array([0]), np.array([999]))
    assert model.survival[0, 1] == pytest.approx(1 - 1 / (2 + PRIOR_WEIGHT), abs=1e-3)


# --- classes --------------------------------------------------------------------------------------------------


def test_classes_are_learned_apart() -> None:
    model = LengthModel(classes=2, horizon_tokens=2048)
    for _ in range(200):
        model.observe(0, 10)
        model.observe(1, 1000)
        if model.due():
            model.learn(NOBODY, NOBODY)
    assert model.mean_tokens(0) == pytest.approx(10, rel=0.15)
    assert model.mean_tokens(1) == pytest.approx(1000, rel=0.05)


def test_an_unseen_class_borrows_the_scale_that_the_others_have_shown() -> None:
    """Guesses of 100 and 400 tokens; the first class turns out ten times longer, so the second is taken to be too."""
    model = LengthModel(2, 32_768, prior_median_tokens=np.array([100.0, 400.0]))
    before = model.mean_tokens(1)
    for _ in range(50):
        model.observe(0, 1571)  # ten times the mean of the first class's prior
        if model.due():
            model.learn(NOBODY, NOBODY)
    assert model.mean_tokens(1) / before == pytest.approx(9, rel=0.15)  # cut at the horizon


def test_a_class_with_data_of_its_own_ignores_the_shared_scale() -> None:
    model = LengthModel(2, 32_768)
    for _ in range(100):
        model.observe(0, 20)
        model.observe(1, 2000)
        if model.due():
            model.learn(NOBODY, NOBODY)
    assert model.mean_tokens(0) == pytest.approx(20, rel=0.6)
    assert model.mean_tokens(1) == pytest.approx(2000, rel=0.05)


def test_who_has_not_outlived_a_guess_is_no_sign_that_it_is_too_short() -> None:
    """Guesses of 1000 tokens are right. Three have ended, and eighty run, at 100 to 850 tokens."""
    model = LengthModel(2, 32_768, prior_median_tokens=np.array([1000.0, 2000.0]), prior_shape=3)
    for _ in range(3):
        model.observe(0, 1000)
    before = model.mean_tokens(1)
    model.learn(np.zeros(80, dtype=np.int64), np.linspace(100, 850, 80).astype(np.int64))
    assert model.mean_tokens(0) == pytest.approx(1100, rel=0.15)
    assert model.mean_tokens(1) == pytest.approx(before, rel=0.15)


def test_those_that_outlive_their_guess_show_that_it_is_too_short() -> None:
    model = LengthModel(2, 32_768, prior_median_tokens=np.array([100.0, 400.0]), prior_shape=3)
    before = model.mean_tokens(1)
    model.observe(0, 100)
    model.learn(np.zeros(40, dtype=np.int64), np.full(40, 1000))
    assert model.mean_tokens(0) > 1000
    assert model.mean_tokens(1) > 4 * before


# --- when it learns -------------------------------------------------------------------------------------------


def test_learning_is_due_often_at_first_and_every_65_requests_later() -> None:
    model = LengthModel(horizon_tokens=64)
    learned_at = []
    for index in range(1, 2001):
        model.observe(0, 10)
        if model.due():
            model.learn(NOBODY, NOBODY)
            learned_at.append(index)
    assert learned_at[:4] == [1, 3, 5, 7]
    assert np.diff(learned_at)[-1] == 65
    assert model.version == len(learned_at)


def test_learning_without_news_changes_nothing() -> None:
    model = LengthModel(horizon_tokens=64)
    before = model.survival.copy()
    model.learn(NOBODY, NOBODY)
    assert model.version == 0
    assert not model.due()
    assert np.array_equal(model.survival, before)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"classes": 0}, "expected 1 or more"),
        ({"horizon_tokens": 1}, "expected 2 or more"),
        ({"prior_shape": 1}, "expected 2 or more"),
        ({"prior_median_tokens": np.array([1.0, 2.0])}, "2 for 1 classes"),
        ({"prior_median_tokens": np.array([math.nan])}, "positive token counts"),
        ({"prior_median_tokens": np.array([0.0])}, "positive token counts"),
    ],
)
def test_wrong_settings_are_refused(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LengthModel(**settings_)  # type: ignore[arg-type]


# --- how well classes tell lengths apart ------------------------------------------------------------------------------


def resolved(*classes: IntArray) -> float:
    model = LengthModel(len(classes))
    for c, lengths in enumerate(classes):
        for length in lengths.tolist():
            model.observe(c, length)
    model.learn(NOBODY, NOBODY)
    return model.resolution


def test_one_class_or_none_finished_resolves_nothing() -> None:
    assert LengthModel(3).resolution == pytest.approx(0.0, abs=1e-9)
    assert resolved(np.arange(1, 500)) == pytest.approx(0.0, abs=1e-9)


def test_resolution_is_the_share_of_variance_between_classes() -> None:
    random = np.random.default_rng(0)
    short, long = np.exp(random.normal(4.0, 0.5, 3000)), np.exp(random.normal(6.0, 0.5, 3000))
    expected = 1.0 / (1.0 + 0.5**2)  # the classes' means are 1 off the middle, either way
    assert resolved(short.astype(np.int64), long.astype(np.int64)) == pytest.approx(expected, abs=0.03)
    mixed = random.permutation(np.concatenate([short, long])).astype(np.int64)
    assert resolved(mixed[:3000], mixed[3000:]) == pytest.approx(0.0, abs=0.01)


def test_what_ends_while_another_thread_learns_is_news_for_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 short ones an estimate is made; before it is done, 100 long ones have ended."""
    model, moments = LengthModel(1, 4096), LengthModel._log_moments_of
    for _ in range(100):
        model.observe(0, 10)

    def moments_while_others_end(self: LengthModel, length_class: int) -> FloatArray:
        for _ in range(100):
            self.observe(0, 1000)
        return moments(self, length_class)

    with monkeypatch.context() as patch:
        patch.setattr(LengthModel, "_log_moments_of", moments_while_others_end)
        model.learn(NOBODY, NOBODY)
    assert model.mean_tokens(0) < 20.0
    assert int(model.finished[0]) == 200
    assert model.due()
    model.learn(NOBODY, NOBODY)
    assert not model.due()
    assert model.mean_tokens(0) > 400.0


def test_many_threads_lose_no_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of each, another thread gets its turn."""

    def exp_at_leisure(x: float) -> float:
        time.sleep(1e-4)
        return math.exp(x)

    monkeypatch.setattr(lengths_module, "math", SimpleNamespace(**{**vars(math), "exp": exp_at_leisure}))
    model = LengthModel(2, 100)

    def observe_many() -> None:
        for _ in range(50):
            model.observe(0, 7)

    threads = [Thread(target=observe_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        model.learn(NOBODY, NOBODY)
    assert model.finished.tolist() == [200, 0]
    assert model._weight[0] == pytest.approx(math.exp(200.0 / MEMORY_REQUESTS))
