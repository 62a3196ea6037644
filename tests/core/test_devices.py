import math

import pytest

from bidroute.core.devices import Device
from bidroute.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_slots", 0),
        ("kv_tokens", 0),
        ("block_size", -1),
        ("period_s", 0.0),
        ("speed", -1.0),
        ("token_budget", -1),
    ],
)
def test_a_wrong_capacity_is_refused_with_its_name_and_value(field: str, value: float) -> None:
    settings = {"batch_slots": 1, "kv_tokens": 1, field: value}
    with pytest.raises(ConfigError, match=f"device a: {field}={value}; expected"):
        Device("a", **settings)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_speed_must_be_finite(value: float) -> None:
    with pytest.raises(ConfigError, match="speed"):
        Device("a", 1, 1, speed=value)


def test_a_peak_counts_in_whole_blocks() -> None:
    device = Device("a", 1, kv_tokens=40, block_size=16)
    assert device.fits(32)
    assert not device.fits(33)
