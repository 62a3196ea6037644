import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.objective import Objective
from bidroute.errors import ConfigError
from bidroute.experiments.frontier.candidates import baselines, found, presets
from bidroute.experiments.frontier.knobs import KNOBS, SWEPT, WEIGHTS, Knob, chosen_knobs
from bidroute.policies import PolicySettings, build_policy


def test_a_range_is_walked_from_end_to_end():
    assert [Knob("patience", 1.0, 3.0).at(share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
    assert [Knob("tail", 1.0, 100.0, "log").at(share) for share in (0.0, 0.5, 1.0)] == [1.0, 10.0, 100.0]
    assert [Knob("max_skips", 0.0, 3.0, "whole").at(share) for share in (0.0, 0.3, 0.99, 1.0)] == [0.0, 1.0, 3.0, 3.0]
    assert [Knob("tail", 0, 0, values=(15.0, 30.0)).at(share) for share in (0.0, 0.49, 0.5, 1.0)] == [15, 15, 30, 30]


@given(st.sampled_from(sorted(KNOBS)), st.floats(0.0, 1.0))
def test_every_knob_gives_a_policy_that_can_be_built(name, share):
    candidate = found("balanced", {name: KNOBS[name].at(share)})
    build_policy(candidate.policy, PolicySettings(objective=candidate.objective))


def test_the_usual_knobs():
    assert [knob.name for knob in chosen_knobs(None)] == list(SWEPT)
    assert [knob.name for knob in chosen_knobs([], WEIGHTS)] == list(WEIGHTS)
    assert all(hasattr(Objective(), name) != KNOBS[name].option for name in KNOBS)


def test_knobs_as_a_user_writes_them():
    patience, tail, skips = chosen_knobs(["patience=1..2", "tail = 15, 30,60", "max_skips"])
    assert (patience.low, patience.high, patience.grid()) == (1.0, 2.0, (1.0, 1.5, 2.0))
    assert tail.grid() == (15.0, 30.0, 60.0)
    assert skips == KNOBS["max_skips"]
    assert chosen_knobs(["tail=0..10"])[0].scale == "linear"  # a logarithm has no 0


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["speed=1..2"], "knob 'speed' is unknown; choose from: patience"),
        (["patience=2..1"], "2 is not below 1"),
        (["patience=1..x"], "'x' is not a number"),
        (["patience="], "'' is not a number"),
        (["patience=-1"], "expected finite numbers, 0 or more"),
        (["patience=nan..2"], "expected finite numbers"),
        (["max_skips=1.5"], "expected whole numbers"),
        (["tail", "tail=1"], "knob tail is given twice"),
    ],
)
def test_wrong_knobs_are_refused(texts, says):
    with pytest.raises(ConfigError, match=says):
        chosen_knobs(texts)


def test_candidates_are_written_as_a_user_would_type_them():
    candidate = found("ttft,tail=5,patience=2", {"tail": 30.0, "risk_z": 1.5, "max_skips": 4.0})
    assert candidate.policy == "bid_price:risk_z=1.5:max_skips=4"
    assert candidate.objective == "ttft,patience=2,tail=30"
    assert candidate.label == "tail=30 risk_z=1.5 max_skips=4"
    assert candidate.options == "--policies bid_price:risk_z=1.5:max_skips=4 --objective ttft,patience=2,tail=30"
    assert [one.label for one in presets()][:2] == ["balanced", "ttft"]
    assert baselines(["fifo", "fifo"])[0].options == "--policies fifo"
    assert found("tail=5", {"tail": 30.0}).objective == "tail=30"
