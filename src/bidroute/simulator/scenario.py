"""What a run simulates: a workload on a fleet, with latency models and engine settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bidroute.core.devices import Device
from bidroute.errors import ConfigError
from bidroute.simulator.fleet_changes import FleetChange, check_changes
from bidroute.simulator.latency import DecodeLatency, PrefillLatency
from bidroute.traces.workload import Workload

MODES = ("decode", "aggregated", "disaggregated")
EVICTIONS = ("preempt", "reserve")
BUDGETS = ("told", "hidden")
LONGEST_S = 1e9  # of arrivals: their times are whole nanoseconds in 64 bits
_MOST_TOKENS = 10**12


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engines of all devices behave.

    `block_size` in tokens per KV block (None: each device's own), `max_batched_tokens` the token budget of one
    pass (aggregated; a device with a `token_budget` has that one), `eviction` is `preempt` (greedy admission, the last
    in is thrown out when blocks run out) or `reserve` (admission keeps KV to completion, nobody is thrown out).
    `recompute_s_per_token` is charged per prompt and decoded token when a preempted request rejoins a decode-only
    batch; an aggregated engine processes the prompt again instead. `budget` is `told` where the router knows the token
    budget, as a live one does only if it is configured, else `hidden`.
    """

    block_size: int | None = None
    max_batched_tokens: int = 8192
    eviction: str = "preempt"
    recompute_s_per_token: float = 0.0
    budget: str = "told"

    def __post_init__(self) -> None:
        for name, value in (("block_size", self.block_size), ("max_batched_tokens", self.max_batched_tokens)):
            if value is not None and not 1 <= value <= _MOST_TOKENS:
                raise ConfigError(f"engine {name}={value}; expected 1 to {_MOST_TOKENS} tokens")
        if self.eviction not in EVICTIONS:
            raise ConfigError(f"engine eviction={self.eviction!r}; expected one of: {', '.join(EVICTIONS)}")
        if self.budget not in BUDGETS:
            raise ConfigError(f"engine budget={self.budget!r}; expected one of: {', '.join(BUDGETS)}")
        if not (math.isfinite(self.recompute_s_per_token) and self.recompute_s_per_token >= 0):
            raise ConfigError(
                f"engine recompute_s_per_token={self.recompute_s_per_token}; expected finite seconds, 0 or more"
            )


@dataclass(frozen=True, slots=True)
class PrefillPool:
    """Each prefill worker of a disaggregated cluster: batch slots, KV tokens (None: as the largest device), budget."""

    slots: int = 256
    kv_tokens: int | None = None
    max_batched_tokens: int = 8192

    def __post_init__(self) -> None:
        for name, value in (("slots", self.slots), ("max_batched_tokens", self.max_batched_tokens)):
            if value < 1:
                raise ConfigError(f"prefill pool {name}={value}; expected 1 or more")
        if self.kv_tokens is not None and self.kv_tokens < 1:
            raise ConfigError(f"prefill pool kv_tokens={self.kv_tokens}; expected 1 or more")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment, without the policy.

    `latency` is one decode model for all devices or one per device, `prefill` likewise (needed unless mode is
    `decode`, where requests arrive with their prompt in the KV cache). `prefill_workers` > 0 only when mode is
    `disaggregated`. The SLOs go into every request, for policies that heed them; infinity means none. `changes` are
    devices that join or are lost meanwhile; those that join are the last of `devices`, in order of joining. A request
    on a device that is lost enters the router's queue again and starts from its beginning.
    """

    workload: Workload
    devices: tuple[Device, ...]
    latency: DecodeLatency | tuple[DecodeLatency, ...]
    prefill: PrefillLatency | tuple[PrefillLatency, ...] | None = None
    mode: str = "decode"
    prefill_workers: int = 0
    engine: EngineConfig = field(default_factory=EngineConfig)
    prefill_pool: PrefillPool = field(default_factory=PrefillPool)
    ttft_slo_s: float = math.inf
    e2e_slo_s: float = math.inf
    changes: tuple[FleetChange, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices:
            raise ConfigError("the scenario has no devices; expected at least one")
        if self.mode not in MODES:
            raise ConfigError(f"mode {self.mode!r}; expected one of: {', '.join(MODES)}")
        if self.mode == "disaggregated" and self.prefill_workers < 1:
            raise ConfigError(f"{self.prefill_workers} prefill workers; a disaggregated scenario needs 1 or more")
        if self.mode != "disaggregated" and self.prefill_workers != 0:
            raise ConfigError(f"{self.prefill_workers} prefill workers; only a disaggregated scenario has any")
        if self.mode != "decode" and self.prefill is None:
            raise ConfigError(f"mode {self.mode} needs a prefill latency; give one, such as affine:P0,P1")
        if self.mode == "disaggregated" and self.changes:
            raise ConfigError("devices join or leave in a disaggregated scenario; expected mode decode or aggregated")
        check_changes(self.devices, self.changes)
        self._require_per_device("latency", self.latency)
        if self.mode != "disaggregated":
            self._require_per_device("prefill", self.prefill)
        elif isinstance(self.prefill, tuple):
            raise ConfigError("prefill latency per device; a disaggregated scenario has one for all prefill workers")

    def _require_per_device(self, name: str, models: object) -> None:
        if isinstance(models, tuple) and len(models) != len(self.devices):
            raise ConfigError(f"{len(models)} {name} models for {len(self.devices)} devices; expected one each")
