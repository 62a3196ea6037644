import math

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.options import parse_engine, parse_mode, parse_slo
from bidroute.simulator import EngineConfig, Slo


def test_modes():
    assert parse_mode("decode") == ("decode", 0)
    assert parse_mode("aggregated") == ("aggregated", 0)
    assert parse_mode("disaggregated:3") == ("disaggregated", 3)


@pytest.mark.parametrize("text", ["", "prefill", "disaggregated", "disaggregated:0", "disaggregated:x", "decode:2"])
def test_a_bad_mode_is_refused(text):
    with pytest.raises(ConfigError, match=r"^mode .*expected decode, aggregated, or disaggregated:P"):
        parse_mode(text)


def test_engine_settings():
    assert parse_engine("", 0.5) == EngineConfig(recompute_s_per_token=0.5)
    given = parse_engine("block_size=16, max_batched_tokens=2048,eviction=reserve", 0.0)
    assert given == EngineConfig(block_size=16, max_batched_tokens=2048, eviction="reserve")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("blocks=16", "is not a setting; expected block_size=N"),
        ("block_size", "is not a setting"),
        ("block_size=big", "expected a whole number"),
        ("block_size=0", "block_size=0; expected 1 to"),
        ("block_size=nan", "expected a whole number"),
        ("max_batched_tokens=-1", "expected 1 to"),
        ("eviction=never", "expected one of: preempt, reserve"),
        ("budget=maybe", "expected one of: told, hidden"),
        ("block_size=1,block_size=2", "given twice"),
    ],
)
def test_bad_engine_settings_are_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_engine(text, 0.0)


def test_slos_keep_their_defaults_where_not_given():
    assert parse_slo("") == Slo()
    assert parse_slo("ttft=1.5,e2e=inf") == Slo(ttft_s=1.5, e2e_s=math.inf)


@pytest.mark.parametrize("text", ["ttft=nan", "e2e=0", "tpot=-1", "ttft=soon", "latency=3", "ttft"])
def test_bad_slos_are_refused(text):
    with pytest.raises(ConfigError, match="expected"):
        parse_slo(text)
