import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.objective import PRESETS, SERVICE_SHARE, URGENCY, Objective, parse_objective
from bidroute.errors import ConfigError

WEIGHTS = ["throughput", "latency", "ttft", "tail", "goodput", "sigma", "alpha", "beta", "gamma"]
NOTHING = dict.fromkeys(WEIGHTS, 0.0)


def term(
    name: str,
    wait_s: float = 3.0,
    service_s: float = 4.0,
    tokens: float = 500.0,
    slo_s: float = 10.0,
    threshold_s: float = 100.0,
    **settings: float,
) -> float:
    """The one term of an objective that has only this one, of weight 2."""
    objective = Objective(**(NOTHING | {name: 2.0} | settings))
    arrays = (np.array([value]) for value in (wait_s, service_s, 0.5, tokens, slo_s))
    terms = objective.terms(*arrays, threshold_s)
    return float(terms[name][0]) if name in terms else 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughput", 2.0),
        ("latency", 2.0 / (1 + 7.0)),
        ("ttft", 2.0 / (1 + 3.5)),
        ("goodput", 2.0 * (1 + URGENCY * (3 / 6) ** 4)),  # 3 of the 6 seconds it may wait
        ("sigma", 2.0),
        ("alpha", 2.0 * 0.5),
        ("beta", 2.0 * (60 - 7)),
        ("gamma", 2.0 * (60 - 3)),
        ("tail", 0.0),
    ],
)
def test_each_term_in_closed_form(name: str, value: float) -> None:
    assert term(name) == pytest.approx(value)


def test_goodput_is_paid_only_while_the_slo_can_be_met() -> None:
    assert term("goodput", slo_s=np.inf) == 2.0
    assert term("goodput", slo_s=7.0) == 2.0 * (1 + URGENCY)
    assert term("goodput", slo_s=4.0, wait_s=0.0) == 2.0
    assert term("goodput", slo_s=6.9) == 0.0


def test_linear_terms_end_at_their_horizon() -> None:
    assert term("beta", wait_s=58.0) == 0.0
    assert term("gamma", wait_s=61.0) == 0.0
    assert term("gamma", wait_s=5.0, horizon_s=10.0) == 10.0


def test_the_tail_counts_a_share_of_the_service() -> None:
    assert term("tail", wait_s=100.0, service_s=0.0) == 0.0
    as_a_wait = term("tail", wait_s=120.0 + SERVICE_SHARE * 40.0, service_s=0.0)
    assert term("tail", wait_s=120.0, service_s=40.0) == pytest.approx(as_a_wait)


@given(st.floats(1.0, 1e4), st.floats(1.1, 10.0))
def test_the_tail_outgrows_every_bound(threshold_s: float, more: float) -> None:
    late = term("tail", wait_s=2 * threshold_s, service_s=0.0, threshold_s=threshold_s)
    later = term("tail", wait_s=2 * threshold_s * more, service_s=0.0, threshold_s=threshold_s)
    assert later > late * more


def test_terms_broadcast_over_devices_and_requests() -> None:
    objective = Objective(**dict.fromkeys(WEIGHTS, 1.0))
    terms = objective.terms(np.zeros(3), np.ones((2, 3)), np.ones((2, 1)), np.ones(3), np.ones(3), 1.0)
    assert set(terms) == set(WEIGHTS)
    assert {value.shape for value in terms.values()} == {(2, 3)}


@given(st.floats(1e-3, 1e3))
def test_scaling_multiplies_every_term(factor: float) -> None:
    objective = Objective(**dict.fromkeys(WEIGHTS, 1.5))
    arrays = np.array([5.0]), np.array([7.0]), np.array([1.0]), np.array([100.0]), np.array([99.0])
    plain, scaled = objective.terms(*arrays, 2.0), objective.scaled(factor).terms(*arrays, 2.0)
    for name in WEIGHTS:
        assert scaled[name][0] == pytest.approx(factor * plain[name][0])


def test_priority_multiplies_and_is_clipped() -> None:
    factors = Objective(priority_base=2.0).priority_factor(np.array([0.0, 1.0, -1.0, 1e9, -1e9]))
    assert factors.tolist() == [1.0, 2.0, 0.5, 2.0**20, 2.0**-20]


def test_the_weights_that_the_kernel_reads() -> None:
    objective = Objective(1, 2, 3, 4, 5, 6, 7, 8, 9, horizon_s=10, priority_base=11)
    assert objective.weights().tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, SERVICE_SHARE]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["throughput", "tail", "threshold_s", "patience"])
def test_weights_are_finite_and_not_negative(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"objective: {name}="):
        Objective(**{name: value})


def test_some_weight_is_positive() -> None:
    with pytest.raises(ConfigError, match="every weight is 0"):
        Objective(**NOTHING)


@pytest.mark.parametrize("name", ["horizon_s", "patience", "priority_base"])
def test_scales_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0"):
        Objective(**{name: 0.0})


def test_parse_takes_presets_and_changes_to_them() -> None:
    assert parse_objective("balanced") == PRESETS["balanced"]
    assert parse_objective("tail=5, latency=1").tail == 5.0
    assert parse_objective("balanced,ttft=2").ttft == 2.0
    for name in PRESETS:
        assert parse_objective(name) == PRESETS[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "'fast': expected a preset"),
        ("tail=1,balanced", "'balanced': expected a preset"),
        ("speed=1", "term 'speed' is unknown"),
        ("tail=much", "tail='much'; expected a number"),
        ("tail=nan", "tail=nan"),
        ("tail=-1", "tail=-1"),
        ("", "'': expected a preset"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse_objective(text)
    assert "\n" not in str(error.value)
