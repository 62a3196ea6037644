import os
import sys
import warnings

import pytest

from bidroute.errors import BidrouteError, ConfigError
from bidroute.experiments import ScenarioSettings
from bidroute.experiments.frontier import SearchSettings, sweep
from bidroute.experiments.frontier.crews import gathered
from bidroute.experiments.workers import local_crew
from tests.experiments.test_workers import die, double, fail


@pytest.mark.parametrize("jobs", [1, 2])
def test_answers_come_with_the_place_of_their_task(jobs):
    with local_crew(jobs) as crew:
        assert crew.size == jobs
        assert dict(crew.each(double, [3, 1, 2])) == {0: 6, 1: 2, 2: 4}
        assert list(crew.each(double, [])) == []
        assert dict(crew.each(double, [5])) == {0: 10}
        with pytest.raises(ConfigError, match="task 1 is wrong"):
            list(crew.each(fail, [1]))


def test_a_killed_process_is_reported():
    with local_crew(2) as crew, pytest.raises(BidrouteError, match="a worker process was killed"):
        list(crew.each(die, [1]))


def test_ray_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("bidroute.experiments.frontier.ray_crew.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'bidroute\[ray\]'"), gathered(1, "auto"):
        pass


def test_a_sweep_on_a_local_ray_gives_the_figures_of_one_here(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # for the cluster's processes
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    settings = ScenarioSettings(requests=60, kv_tokens=20_000, devices=2)
    search = SearchSettings(knobs=["patience=1..2"], points=2, baselines=["round_robin"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, of its dependencies
        there = sweep(settings, search, seeds=1, journal=tmp_path / "there.jsonl", ray="local")
    here = sweep(settings, search, seeds=1, journal=tmp_path / "here.jsonl")
    assert [one.rows for one in there.outcomes] == [one.rows for one in here.outcomes]


def test_an_error_on_the_cluster_is_the_error_here(monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gathered(1, "local") as crew:
            assert crew.size >= 1
            assert dict(crew.each(double, [3, 1])) == {0: 6, 1: 2}
            with pytest.raises(ConfigError, match="task 1 is wrong"):
                list(crew.each(fail, [1]))


def test_a_cluster_that_is_not_there_is_one_line():
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(ConfigError, match=r"--ray 127\.0\.0\.1:1: cannot connect"), gathered(1, "127.0.0.1:1"):
        pass
