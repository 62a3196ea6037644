import math

import pytest

from bidroute.core.requests import Request
from bidroute.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arrival_s", math.nan),
        ("prompt_tokens", -1),
        ("max_tokens", 0),
        ("predicted_tokens", math.nan),
        ("predicted_tokens", -1.0),
        ("predicted_tokens", math.inf),
        ("priority", math.nan),
        ("ttft_slo_s", 0.0),
        ("e2e_slo_s", math.nan),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_and_value(field: str, value: float) -> None:
    settings = {"arrival_s": 0.0, "prompt_tokens": 1, field: value}
    with pytest.raises(ConfigError, match=rf"^request 7: {field}={value}; expected"):
        Request(7, **settings)


def test_defaults_are_accepted() -> None:
    assert Request(7, 0.0, 0).ttft_slo_s == math.inf
