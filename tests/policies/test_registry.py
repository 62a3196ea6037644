import math

import pytest

from bidroute.errors import ConfigError
from bidroute.policies import PolicySettings, Timing, build_policy, compared_names, policy_names, register

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
