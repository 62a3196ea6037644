import json

import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings
from bidroute.experiments.frontier import recommend as module
from bidroute.experiments.frontier.goals import parse_goal
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.frontier.recommend import recommend
from tests.experiments.frontier.fakes import row

SMALL = ScenarioSettings(requests=60, kv_tokens=20_000, devices=2)


def trace_file(path, requests=100):
    rows = [f"{0.05 * i},{100 + i},{20 + i % 7}" for i in range(requests)]
    path.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    return str(path)


def test_a_builtin_is_checked_on_other_draws(tmp_path):
    advice = recommend(SMALL, parse_goal("e2e_p99<60"), points=2, seeds=1, journal=tmp_path / "j.jsonl")
    assert advice.parts == ("seed 0", "new draws of it, seed 1")
    assert advice.reached == (True, True)
    assert advice.settings == 8
    assert advice.chosen.searched.rows != advice.chosen.held_out.rows
    noted = [json.loads(line)["seed"] for line in (tmp_path / "j.jsonl").read_text().splitlines()]
    checked = {advice.chosen.candidate, (advice.runner_up or advice.chosen).candidate, advice.default.candidate}
    assert (noted.count(0), noted.count(1)) == (9, len(checked) + 1)  # and the baseline


def test_a_file_is_cut_in_two_by_time(tmp_path):
    settings = ScenarioSettings(trace=trace_file(tmp_path / "trace.csv"), lengths="noisy:0.5")
    first, second, parts = module._two_parts(settings, 1)
    assert parts == ("requests 0 to 59", "requests 60 to 99, held out")
    assert (len(first.first.workload), len(second.first.workload)) == (60, 40)
    assert second.first.workload.arrival_s[0] == 0.0
    np.testing.assert_allclose(np.diff(second.first.workload.arrival_s), 0.05)
    assert second.first.workload.prompt_tokens[0] == 160
    assert [len(one.predictions[0]) for one in (first, second)] == [60, 40]


def test_a_file_that_is_too_short_is_refused(tmp_path):
    settings = ScenarioSettings(trace=trace_file(tmp_path / "trace.csv", 30))
    with pytest.raises(ConfigError, match="30 requests to search and check on; expected 40 or more"):
        recommend(settings, parse_goal("min e2e_mean"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"points": -1}, "points: -1"), ({"seeds": 0}, "seeds: 0"), ({"knobs": ["speed"]}, "knob 'speed' is unknown")],
)
def test_wrong_settings_are_refused(arguments, says):
    with pytest.raises(ConfigError, match=says):
        recommend(SMALL, parse_goal("min e2e_mean"), **arguments)


class Lookup:
    """In place of runs: figures (E2E mean, E2E p99) by objective, first where searched, then held out."""

    def __init__(self, figures):
        self.figures, self.parts = figures, []

    def __call__(self, experiment, *_):
        if experiment not in self.parts:
            self.parts.append(experiment)
        part = len(self.parts) - 1
        return Fixed(lambda one: Outcome(one, (row(*self.figures.get(one.objective, ((9, 9), (9, 9)))[part]),)))


class Fixed:
    def __init__(self, outcome):
        self._outcome = outcome

    def outcomes(self, candidates):
        return [self._outcome(one) for one in candidates]


def advised(monkeypatch, tmp_path, goal, figures):
    monkeypatch.setattr(module, "Evaluation", Lookup(figures))
    return recommend(SMALL, parse_goal(goal), points=0, seeds=1, journal=tmp_path / "j.jsonl")


def test_the_best_within_the_limits_is_recommended(monkeypatch, tmp_path):
    figures = {"balanced": ((5, 10), (5, 10)), "latency": ((3, 30), (3, 30)), "tail": ((4, 11), (4, 12))}
    advice = advised(monkeypatch, tmp_path, "e2e_p99<20, min e2e_mean", figures)
    assert advice.chosen.candidate.objective == "tail"
    assert advice.reached == (True, True)
    assert advice.runner_up is None


def test_a_chance_find_is_not_recommended(monkeypatch, tmp_path):
    figures = {"balanced": ((5, 10), (5, 10)), "tail": ((4, 10), (6, 10))}
    advice = advised(monkeypatch, tmp_path, "min e2e_mean", figures)
    assert advice.chosen.candidate.objective == "balanced"
    assert advice.runner_up.candidate.objective == "tail"


def test_a_goal_that_cannot_be_reached_gets_the_closest(monkeypatch, tmp_path):
    figures = {"balanced": ((5, 30), (5, 30)), "tail": ((7, 22), (7, 23))}
    advice = advised(monkeypatch, tmp_path, "e2e_p99<8, min e2e_mean", figures)
    assert advice.reached == (False, False)
    assert advice.goal.excess(advice.chosen.searched) == pytest.approx((9 - 8) / 8)


def test_a_goal_reached_only_where_it_was_searched_says_so(monkeypatch, tmp_path):
    figures = {"balanced": ((5, 30), (5, 30)), "tail": ((7, 19), (7, 23))}
    advice = advised(monkeypatch, tmp_path, "e2e_p99<20, e2e_mean<8, min ttft_mean", figures)
    assert advice.chosen.candidate.objective == "tail"
    assert advice.reached == (True, False)
