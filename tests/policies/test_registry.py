import math

import pytest

from bidroute.errors import ConfigError
from bidroute.policies import PolicySettings, Timing, build_policy, compared_names, policy_names, register
from bidroute.policies.registry import split_options

DISPATCH = {
    "round_robin",
    "random",
    "join_shortest_queue",
    "weighted_least_connections",
    "power_of_d",
    "least_kv",
    "least_predicted_work",
    "lmetric",
}
CENTRAL = {"selective_push"} | {
    base + safety + ageing
    for base in ("fifo", "shortest_first", "least_footprint")
    for safety in ("", "+safety")
    for ageing in ("", "+ageing")
}


def test_every_classic_policy_is_there_under_its_own_name_and_timing() -> None:
    assert set(policy_names()) >= DISPATCH | CENTRAL
    for name in DISPATCH | CENTRAL:
        policy = build_policy(name)
        assert policy.name == name
        assert policy.timing is (Timing.ON_ARRIVAL if name in DISPATCH else Timing.WHEN_STARTABLE)


def test_all_in_a_comparison_leaves_the_variants_out() -> None:
    assert set(compared_names()) < set(policy_names())
    assert {"fifo", "fifo+safety", "least_footprint+safety+ageing"} | DISPATCH <= set(compared_names())
    assert "fifo+ageing" not in compared_names()


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"^policy 'fifi' is unknown; choose from: .*fifo\+safety, .*lmetric"):
        build_policy("fifi")


def test_a_name_can_be_taken_once() -> None:
    with pytest.raises(ConfigError, match="policy 'fifo' is registered twice; choose another name"):
        register("fifo")(lambda settings: build_policy("fifo"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fifo+safety", {"risk_z": "much"}, "policy option risk_z='much'; expected a finite number"),
        ("fifo+safety", {"risk_z": math.nan}, "policy option risk_z=nan; expected a finite number"),
        ("fifo+safety", {"max_skips": 1.5}, "policy option max_skips=1.5; expected a whole number"),
        ("shortest_first+ageing", {"ageing_s": 0.0}, "ageing_s=0.0; expected a positive time"),
        ("power_of_d", {"d": 0}, "d=0; expected 1 or more"),
    ],
)
def test_a_wrong_option_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_policy(name, PolicySettings(options=options))


def test_options_follow_the_name() -> None:
    assert split_options("fifo+safety") == ("fifo+safety", {})
    assert split_options(" power_of_d : d = 3 ") == ("power_of_d", {"d": 3})
    assert split_options("x:a=1.5:b=-2:c=much") == ("x", {"a": 1.5, "b": -2, "c": "much"})


def test_options_of_the_name_come_on_top_of_those_in_the_settings() -> None:
    settings = PolicySettings(options={"max_skips": 1.5, "risk_z": 0})
    assert build_policy("fifo+safety:max_skips=2", settings).name == "fifo+safety"
    assert settings.options == {"max_skips": 1.5, "risk_z": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("round_robin:d=3", r"policy round_robin has no option 'd'; it takes none"),
        ("power_of_d:k=3:e=1", r"policy power_of_d has no option 'e'; choose from: d"),
        ("fifo:risk_z=3", r"policy fifo has no option 'risk_z'; choose from: max_skips"),
        ("bid_price:d=3", r"'d' is unknown; choose from: max_skips, risk_z, step|has no option 'd'"),
        ("power_of_d:d=x", r"policy option d='x'; expected a finite number"),
        ("power_of_d:d=1e999", r"policy option d=inf; expected a finite number"),
        ("power_of_d:d", r"'d' is not option=value; expected such as power_of_d:d=3"),
        ("power_of_d:", r"'' is not option=value"),
        ("power_of_d:d=2:d=3", r"d is given twice; give it once"),
        (":d=3", r"policy '' is unknown"),
    ],
)
def test_options_that_a_policy_does_not_take_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_policy(text)
