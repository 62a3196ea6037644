import numpy as np
import pytest

from bidroute.policies.arrivals import PAUSE_ARRIVALS, SHORTEST_SPAN_S, ArrivalHistory


def test_it_remembers_the_last_ones() -> None:
    history = ArrivalHistory(memory=3)
    for k in range(5):
        history.add(float(k), 10 * k, k)
    assert len(history) == 3
    assert sorted(history.prompt_tokens.tolist()) == [20, 30, 40]
    assert sorted(history.length_class.tolist()) == [2, 3, 4]


def test_the_rate_counts_gaps() -> None:
    history = ArrivalHistory(memory=4)
    for k in range(3):
        history.add(10.0 + 0.5 * k, 1, 0)
    assert history.rate_per_s(11.0) == pytest.approx(2.0)
    for k in range(3, 50):
        history.add(10.0 + 0.5 * k, 1, 0)
    assert history.rate_per_s(10.0 + 0.5 * 49) == pytest.approx(2.0)


def test_the_rate_falls_while_nobody_comes() -> None:
    history = ArrivalHistory()
    history.add(0.0, 1, 0)
    history.add(1.0, 1, 0)
    assert history.rate_per_s(1.0) == 1.0
    assert history.rate_per_s(100.0) == 0.01


def test_one_arrival_has_no_rate() -> None:
    history = ArrivalHistory()
    assert history.rate_per_s(5.0) == 0.0
    history.add(0.0, 1, 0)
    assert history.rate_per_s(5.0) == 0.0


def test_arrivals_at_one_moment_have_no_rate_yet() -> None:
    history = ArrivalHistory()
    for _ in range(10):
        history.add(3.0, 1, 0)
    assert history.rate_per_s(3.0) == 0.0
    assert history.rate_per_s(3.0 + 1e-9) == 9 / SHORTEST_SPAN_S
    assert history.rate_per_s(4.0) == 9.0


def test_poisson_arrivals_at_their_rate() -> None:
    history = ArrivalHistory()
    times = np.cumsum(np.random.default_rng(1).exponential(0.1, 2000))
    for now_s in times:
        history.add(float(now_s), 1, 0)
    assert history.rate_per_s(float(times[-1])) == pytest.approx(10.0, rel=0.15)


def test_a_pause_hides_the_rate_before_it_no_longer_than_that_lasted() -> None:
    history = ArrivalHistory()
    for k in range(PAUSE_ARRIVALS):
        history.add(0.5 * k, 1, 0)
    history.add(1e9, 1, 0)
    assert history.rate_per_s(1e9) == pytest.approx(PAUSE_ARRIVALS / (2 * 0.5 * (PAUSE_ARRIVALS - 1)))


@pytest.mark.parametrize("memory", [5, 64])
def test_a_clock_set_back_moves_what_is_remembered(memory: int) -> None:
    history = ArrivalHistory(memory)
    for k in range(10):
        history.add(1e6 + k, 1, 0)
    history.add(3.0, 1, 0)
    history.add(4.0, 1, 0)
    assert history.rate_per_s(5.0) == pytest.approx(4 / 4.0 if memory == 5 else 11 / 11.0)
