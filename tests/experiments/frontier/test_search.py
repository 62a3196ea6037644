import sys

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.frontier.knobs import chosen_knobs
from bidroute.experiments.frontier.search import BATCH, Closing, build_search
from tests.experiments.frontier.fakes import outcome

KNOBS = chosen_knobs(["patience=1..2", "tail=15,30"])


def everything(search, figure=lambda settings: 1.0):
    """All that a search proposes, where each setting has this E2E mean (and a tail that runs against it)."""
    proposed = []
    while batch := search.batch():
        figures = [figure(settings) for settings in batch]
        search.learn([outcome(mean, 10.0 - mean, value=mean) for mean in figures])
        proposed += batch
    return proposed


def test_a_grid_is_every_combination():
    grid = everything(build_search("grid", KNOBS, 6, 0))
    assert grid == [{"patience": p, "tail": t} for p in (1.0, 1.5, 2.0) for t in (15.0, 30.0)]


def test_draws_are_those_of_the_seed_and_more_points_begin_with_fewer():
    few, many = (everything(build_search("random", KNOBS, count, 3)) for count in (5, 20))
    assert many[:5] == few
    assert everything(build_search("random", KNOBS, 5, 4)) != few
    assert {one["tail"] for one in many} == {15.0, 30.0}
    assert all(1.0 <= one["patience"] <= 2.0 for one in many)


def test_no_points_is_an_empty_search():
    assert everything(build_search("grid", KNOBS, 0, 0)) == []


def test_closing_in_ends_near_the_best_and_repeats_itself():
    def search():
        return Closing(chosen_knobs(["patience=1..2"]), 40, 0, lambda one: (0.0, one.median("e2e_s.mean")))

    def figure(settings):
        return abs(settings["patience"] - 1.37)

    first = everything(search(), figure)
    assert len(first) == 40
    assert min(map(figure, first)) < 0.01
    assert sum(figure(one) < 0.15 for one in first[20:]) >= 15
    assert everything(search(), figure) == first


@pytest.mark.parametrize(
    ("kind", "points", "says"),
    [
        ("luck", 5, "search 'luck' is unknown; choose from: random, grid, optuna"),
        ("random", -1, "points: -1"),
        ("grid", 5, r"the grid has 6 points \(patience 3 × tail 2\) and --points is 5"),
    ],
)
def test_wrong_searches_are_refused(kind, points, says):
    with pytest.raises(ConfigError, match=says):
        build_search(kind, KNOBS, points, 0)


def test_optuna_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("bidroute.experiments.frontier.search.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bidroute\[sweep\]'"):
        build_search("optuna", KNOBS, 5, 0)


def test_optuna_is_not_imported_unless_asked_for():
    build_search("random", KNOBS, 5, 0)
    assert "optuna" not in sys.modules or "bidroute.experiments.frontier.optuna_search" in sys.modules


def test_optuna_learns_and_repeats_itself():
    pytest.importorskip("optuna", reason="optuna is not installed")

    def figure(settings):
        return abs(settings["patience"] - 1.7)

    first = everything(build_search("optuna", KNOBS, 2 * BATCH + 3, 1), figure)
    assert len(first) == 2 * BATCH + 3
    assert everything(build_search("optuna", KNOBS, 2 * BATCH + 3, 1), figure) == first


def test_optuna_survives_runs_without_figures():
    pytest.importorskip("optuna", reason="optuna is not installed")
    search = build_search("optuna", KNOBS, BATCH + 1, 1)
    search.learn([outcome(None, 1.0) for _ in search.batch()])
    assert len(search.batch()) == 1
