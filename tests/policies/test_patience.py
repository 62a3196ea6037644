import numpy as np
import pytest

from bidroute.policies.patience import BLIND_SHARE, RESOLVED, SojournTracker, trusted_patience


def test_littles_law() -> None:
    tracker = SojournTracker()
    tracker.observe(inside=30, rate_per_s=10.0)
    assert tracker.mean_s == pytest.approx(3.0)


def test_without_a_rate_nothing_is_learned() -> None:
    tracker = SojournTracker()
    tracker.observe(30, 0.0)
    assert tracker.mean_s == 0.0


def test_first_arrivals_are_averaged_later_ones_remembered() -> None:
    tracker = SojournTracker(memory_arrivals=100.0)
    for inside in (10, 20, 30):
        tracker.observe(inside, 1.0)
    assert tracker.mean_s == pytest.approx(20.0)
    for _ in range(1000):
        tracker.observe(7, 1.0)
    assert tracker.mean_s == pytest.approx(7.0, rel=1e-3)


def test_many_arrivals_at_once_count_as_often() -> None:
    one_by_one, at_once = SojournTracker(50.0), SojournTracker(50.0)
    for tracker in (one_by_one, at_once):
        for _ in range(500):
            tracker.observe(5, 1.0)
    for _ in range(20):
        one_by_one.observe(9, 1.0)
    at_once.observe(9, 1.0, arrivals=20)
    assert at_once.mean_s == pytest.approx(one_by_one.mean_s)


def test_it_finds_the_sojourn_of_a_steady_queue() -> None:
    """Poisson arrivals at 2/s that all stay 4 s: the number inside varies, its mean over the rate does not."""
    random = np.random.default_rng(0)
    arrival_s = np.cumsum(random.exponential(0.5, 4000))
    tracker = SojournTracker(memory_arrivals=2000.0)
    for k, now_s in enumerate(arrival_s):
        tracker.observe(k - int(np.searchsorted(arrival_s, now_s - 4.0)), 2.0)
    assert tracker.mean_s == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    ("patience", "resolution", "trusted"),
    [
        (1.4, 1.0, 1.4),
        (1.4, RESOLVED, 1.4),
        (1.4, 0.0, 1.0 + 0.4 * BLIND_SHARE),
        (2.0, RESOLVED / 2, 1.0 + (1.0 + BLIND_SHARE) / 2),
        (0.8, 0.0, 0.8),
        (0.8, 1.0, 0.8),
    ],
)
def test_patience_beyond_one_is_had_as_far_as_lengths_are_told_apart(
    patience: float, resolution: float, trusted: float
) -> None:
    assert trusted_patience(patience, resolution) == pytest.approx(trusted)
