import math

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.frontier.goals import GOAL_MEASURES, parse_goal
from tests.experiments.frontier.fakes import outcome


def test_a_goal_is_limits_and_one_aim():
    goal = parse_goal(" ttft_p99 < 500ms, goodput>=3 ,min e2e_p99")
    assert [(limit.name, limit.bound) for limit in goal.limits] == [("ttft_p99", 0.5), ("goodput", 3.0)]
    assert goal.aim == "e2e_p99"
    assert str(goal) == "ttft_p99<0.5, goodput>3, min e2e_p99"
    assert parse_goal(str(goal)) == goal
    assert list(goal.shown) == ["ttft_p99", "goodput", "e2e_p99"]


def test_the_aim_may_be_left_out():
    assert str(parse_goal("e2e_p99<20s")) == "e2e_p99<20, min e2e_mean"
    assert str(parse_goal("max tokens_per_s")) == "max tokens_per_s"


def test_limits_come_before_the_aim_and_the_closest_is_best_where_none_holds():
    goal = parse_goal("e2e_p99<20, min e2e_mean")
    late, good, better = outcome(1.0, 30.0), outcome(5.0, 20.0), outcome(4.0, 19.0)
    assert goal.best([late, good, better]) is better
    assert goal.excess(late) == pytest.approx(0.5)
    assert goal.excess(good) == 0.0
    assert goal.best([late, outcome(9.0, 25.0)]).median("e2e_s.p99") == 25.0


def test_a_limit_must_hold_for_every_seed():
    from bidroute.experiments.frontier.outcomes import Outcome

    goal = parse_goal("e2e_p99<20")
    mixed = Outcome(outcome(1, 1).candidate, (*outcome(1, 10.0).rows, *outcome(1, 22.0).rows, *outcome(1, 10.0).rows))
    assert goal.excess(mixed) == pytest.approx(0.1)


def test_what_has_no_figures_misses_everything():
    goal = parse_goal("e2e_p99<20, min e2e_mean")
    assert goal.score(outcome(None, None)) == (math.inf, math.inf)


def test_rates_are_better_the_higher():
    goal = parse_goal("tokens_per_s>100, max goodput")
    assert goal.best([outcome(1, 1, goodput=3.0), outcome(1, 1, goodput=4.0)]).median("goodput") == 4.0
    assert goal.excess(outcome(1, 1, tokens=50.0)) == 0.5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "goal: nothing in it; expected such as"),
        ("fast", "goal 'fast': expected NAME<NUMBER"),
        ("speed<2", "goal: 'speed' is no measure; choose from: e2e_mean"),
        ("min speed", "'speed' is no measure"),
        ("min", "'' is no measure"),
        ("ttft_p99>2", "ttft_p99 is better the other way; say ttft_p99<2"),
        ("goodput<2", "goodput is better the other way; say goodput>2"),
        ("max e2e_mean", "say 'min e2e_mean'"),
        ("min goodput", "say 'max goodput'"),
        ("ttft_p99<soon", "expected a positive time, such as 2, 2s or 500ms"),
        ("ttft_p99<0", "expected a positive time"),
        ("ttft_p99<-1", "expected a positive time"),
        ("ttft_p99<1.2.3", "expected a positive time"),
        ("ttft_p99<1e999", "expected a positive time"),
        ("goodput>3ms", "goodput>3ms': 3ms; expected a positive number"),
        ("ttft_p99<2,ttft_p99<3", "ttft_p99 is limited twice"),
        ("min e2e_mean, min e2e_p99", "2 aims; expected one min or max"),
    ],
)
def test_wrong_goals_are_refused(text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_goal(text)
    assert "\n" not in str(caught.value)


def test_every_measure_can_be_read():
    one = outcome(1.0, 2.0)
    assert all(math.isfinite(one.median(measure.path)) for measure in GOAL_MEASURES.values())
