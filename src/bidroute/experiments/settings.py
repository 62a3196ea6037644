"""The settings of an experiment, as a user gives them: texts and numbers, checked one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from bidroute.errors import ConfigError

DEFAULT_TRACE = "builtin:azure-conv-like"
DEFAULT_REQUESTS = 2000
DEFAULT_DEVICES = 4
DEFAULT_BATCH_SLOTS = 128
DEFAULT_KV_TOKENS = 50_000
# What the longest requests of a built-in workload need to fit at all.
BUILTIN_KV_TOKENS = {"builtin:reasoning-like": 200_000, "builtin:long-context-like": 450_000}
DEFAULT_LATENCY = "affine:0.006,5e-05,5.086e-08"
DEFAULT_PREFILL = "affine:0.005,4e-05"
DEFAULT_RECOMPUTE_S = 4e-5
# Far more than anybody has; what lies beyond is a slip of the keyboard that would fill the memory.
MOST_DEVICES = 100_000
MOST_BATCH_SLOTS = 1_000_000
MOST_KV_TOKENS = 10**12
_MOST = {
    "requests": 10**9,
    "devices": MOST_DEVICES,
    "batch_slots": MOST_BATCH_SLOTS,
    "kv_tokens": MOST_KV_TOKENS,
}


@dataclass(frozen=True, slots=True)
class ScenarioSettings:
    """What to run. None means "not given": the defaults then depend on the workload and on the fleet.

    `trace` is a file, or `builtin:NAME`; `load`, instead of `speedup`, the share of the fleet's estimated capacity that
    arrivals come to; `fleet` a YAML file that replaces `devices`, `batch_slots` and `kv_tokens`; `mode` is `decode`,
    `aggregated` or `disaggregated:P`; `engine` is `key=value,…`; `latency` and `prefill` are `affine:…` in seconds or
    the name of a packaged table; `slo` is `ttft=S,e2e=S,tpot=S` in seconds.
    """

    trace: str = DEFAULT_TRACE
    requests: int | None = None
    skip_bad_rows: bool = False
    speedup: float | None = None
    load: float | None = None
    devices: int | None = None
    batch_slots: int | None = None
    kv_tokens: int | None = None
    fleet: Path | None = None
    mode: str = "decode"
    engine: str = ""
    latency: str = DEFAULT_LATENCY
    prefill: str = DEFAULT_PREFILL
    recompute_s_per_token: float = DEFAULT_RECOMPUTE_S
    lengths: str = "none"
    objective: str = "balanced"
    slo: str = ""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            _check_count(name, getattr(self, name), most)
        if self.speedup is not None and self.load is not None:
            raise ConfigError("--speedup and --load were both given; give one")
        for name, value, example in (("speedup", self.speedup, "13"), ("load", self.load, "0.85")):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}: {value}; expected a positive number, such as {example}")
        if not 0 <= self.recompute_s_per_token <= 1:
            raise ConfigError(f"recompute: {self.recompute_s_per_token}; expected seconds per token, 0 to 1")
        if self.fleet is not None:
            self._check_fleet_alone()

    def _check_fleet_alone(self) -> None:
        for name in ("devices", "batch_slots", "kv_tokens"):
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} and --fleet were both given; set {name} in the fleet file instead")

    @property
    def is_builtin(self) -> bool:
        """Whether the workload is drawn, anew for every seed, rather than read from a file."""
        return self.trace.startswith("builtin:")


def require_counts(**counts: int) -> None:
    """Raise ConfigError unless every one is 1 or more."""
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name.replace('_', '-')}: {count}; expected a whole number, 1 or more")


def _check_count(name: str, value: int | None, most: int) -> None:
    if value is None:
        return
    require_counts(**{name: value})
    if value > most:
        raise ConfigError(f"{name.replace('_', '-')}: {value}; expected {most} at most; give less")
