import numpy as np
import pytest

from bidroute.policies.patience import (
    BLIND_PATIENCE,
    BLIND_SHARE,
    CROWDED,
    RESOLVED,
    TOLD_PATIENCE,
    SojournTracker,
    trusted_patience,
)


def test_littles_law() -> None:
    tracker = SojournTracker()
    tracker.observe(waiting=10, running=20, rate_per_s=10.0)
    assert (tracker.mean_s, tracker.wait_s) == (pytest.approx(3.0), pytest.approx(1.0))
    assert tracker.waiting_share == pytest.approx(1 / 3)


def test_without_a_rate_nothing_is_learned() -> None:
    tracker = SojournTracker()
    tracker.observe(10, 20, 0.0)
    assert (tracker.mean_s, tracker.waiting_share) == (0.0, 1.0)


def test_first_arrivals_are_averaged_later_ones_remembered() -> None:
    tracker = SojournTracker(memory_arrivals=100.0)
    for inside in (10, 20, 30):
        tracker.observe(0, inside, 1.0)
    assert tracker.mean_s == pytest.approx(20.0)
    for _ in range(1000):
        tracker.observe(0, 7, 1.0)
    assert tracker.mean_s == pytest.approx(7.0, rel=1e-3)


def test_many_arrivals_at_once_count_as_often() -> None:
    one_by_one, at_once = SojournTracker(50.0), SojournTracker(50.0)
    for tracker in (one_by_one, at_once):
        for _ in range(500):
            tracker.observe(0, 5, 1.0)
    for _ in range(20):
        one_by_one.observe(0, 9, 1.0)
    at_once.observe(0, 9, 1.0, arrivals=20)
    assert at_once.mean_s == pytest.approx(one_by_one.mean_s)


def test_it_finds_the_sojourn_of_a_steady_queue() -> None:
    """Poisson arrivals at 2/s that all stay 4 s: the number inside varies, its mean over the rate does not."""
    random = np.random.default_rng(0)
    arrival_s = np.cumsum(random.exponential(0.5, 4000))
    tracker = SojournTracker(memory_arrivals=2000.0)
    for k, now_s in enumerate(arrival_s):
        tracker.observe(0, k - int(np.searchsorted(arrival_s, now_s - 4.0)), 2.0)
    assert tracker.mean_s == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    ("patience", "resolution", "waiting_share", "trusted"),
    [
        (1.4, 1.0, 1.0, 1.4),
        (1.4, RESOLVED, CROWDED, 1.4),
        (1.4, 0.0, CROWDED, 1.0 + 0.4 * BLIND_SHARE),
        (1.4, RESOLVED / 2, CROWDED, 1.0 + 0.4 * (1.0 + BLIND_SHARE) / 2),
        (2.5, RESOLVED, CROWDED, 2.5),
        (2.5, 1.0, CROWDED / 2, 1.75),
        (1.4, 1.0, CROWDED / 2, 1.2),
        (1.4, 1.0, 0.0, 1.0),
        (0.8, 0.0, 0.0, 0.8),
        (0.8, 1.0, 1.0, 0.8),
    ],
)
def test_patience_is_trusted_as_far_as_lengths_can_be_told_apart_and_requests_wait(
    patience: float, resolution: float, waiting_share: float, trusted: float
) -> None:
    assert trusted_patience(patience, resolution, waiting_share) == pytest.approx(trusted)


def test_much_patience_is_for_lengths_that_are_certain() -> None:
    resolutions = np.linspace(0.0, 1.0, 11)
    trusted = [trusted_patience(10.0, float(resolution), CROWDED) for resolution in resolutions]
    assert trusted[0] == pytest.approx(1.0 + BLIND_SHARE * (BLIND_PATIENCE - 1.0))
    assert trusted[3] == pytest.approx(TOLD_PATIENCE)  # at RESOLVED
    assert trusted[7] < 3.5  # predictions off by a factor of about two
    assert trusted[-1] == pytest.approx(10.0)
    assert np.all(np.diff(trusted) > 0.0)
