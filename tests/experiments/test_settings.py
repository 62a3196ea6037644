import math
from pathlib import Path

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.settings import ScenarioSettings


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("requests", 0, "requests"),
        ("devices", -1, "devices"),
        ("batch_slots", 0, "batch-slots"),
        ("kv_tokens", 0, "kv-tokens"),
        ("load", -0.5, "load"),
        ("speedup", 0.0, "speedup"),
        ("speedup", math.nan, "speedup"),
        ("speedup", math.inf, "speedup"),
        ("recompute_s_per_token", -1.0, "recompute"),
        ("recompute_s_per_token", math.nan, "recompute"),
    ],
)
def test_a_bad_number_is_named_with_what_was_expected(field, value, names):
    with pytest.raises(ConfigError, match=rf"^{names}: .*expected") as caught:
        ScenarioSettings(**{field: value})
    assert "\n" not in str(caught.value)


def test_a_fleet_file_and_device_options_exclude_one_another():
    with pytest.raises(ConfigError, match="--kv-tokens and --fleet"):
        ScenarioSettings(fleet=Path("fleet.yaml"), kv_tokens=1000)


def test_builtin_workloads_are_told_from_files():
    assert ScenarioSettings().is_builtin
    assert not ScenarioSettings(trace="trace.csv").is_builtin
