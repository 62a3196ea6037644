from __future__ import annotations

from typing import Any

import pytest

from bidroute.errors import ConfigError
from bidroute.simulator import EngineConfig, PrefillPool, Scenario, affine_decode, affine_prefill
from tests.simulator.helpers import devices, workload

WORK = workload([(0.0, 1, 1)])
DECODE, PREFILL = affine_decode(1.0, 0.0, 0.0), affine_prefill(1.0, 0.0)
TWO = devices(2, 1, 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size=0; expected 1 to"),
        ({"max_batched_tokens": 0}, "max_batched_tokens=0"),
        ({"eviction": "swap"}, "'swap'; expected one of: preempt, reserve"),
        ({"recompute_s_per_token": float("nan")}, "recompute_s_per_token=nan"),
        ({"recompute_s_per_token": -1.0}, "recompute_s_per_token=-1"),
    ],
)
def test_engine_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


@pytest.mark.parametrize("settings", [{"slots": 0}, {"kv_tokens": 0}, {"max_batched_tokens": 0}])
def test_prefill_pools_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected 1 or more"):
        PrefillPool(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": ()}, "no devices"),
        ({"mode": "prefill"}, "'prefill'; expected one of: decode, aggregated, disaggregated"),
        ({"mode": "aggregated"}, "needs a prefill latency"),
        ({"mode": "disaggregated", "prefill": PREFILL}, "0 prefill workers"),
        ({"prefill_workers": 2}, "2 prefill workers; only a disaggregated"),
        ({"latency": (DECODE,)}, "1 latency models for 2 devices"),
        ({"mode": "aggregated", "prefill": (PREFILL,) * 3}, "3 prefill models for 2 devices"),
        ({"mode": "disaggregated", "prefill_workers": 1, "prefill": (PREFILL,) * 2}, "one for all prefill workers"),
    ],
)
def test_scenarios_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scenario(**{"workload": WORK, "devices": TWO, "latency": DECODE, **settings})
