"""How loaded a fleet is: arrivals against an estimate of what it could serve at best.

A device that runs N requests at once makes N tokens per iteration. N is what its batch slots and its KV cache
allow, a request holding on average Σ(o·s + o(o+1)/2)/Σo tokens while it decodes (long outputs hold longer, so
they count more). Prefill adds its own time where the same engine does it; prefill workers have a rate of their
own. No scheduling losses are counted, so real fleets saturate somewhat below a load of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bidroute.errors import ConfigError
from bidroute.traces.workload import Workload

TARGET_LOAD = 1.0
LONGEST_PERIOD_S = 1000.0
_SAMPLE = 500  # requests whose prefill times are averaged


class DecodeTime(Protocol):
    """What is needed of a decode latency model."""

    def seconds(self, batch: int, kv_tokens: int) -> float:
        """Time of one iteration."""
        ...


class PrefillTime(Protocol):
    """What is needed of a prefill latency model."""

    def seconds(self, new_tokens: int) -> float:
        """Time to process a prompt of that many tokens."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Capacity and pace of one device, as the estimate needs them; `prefill` where its engine prefills too."""

    batch_slots: int
    kv_tokens: int
    decode: DecodeTime
    prefill: PrefillTime | None = None


@dataclass(frozen=True, slots=True)
class DevicePace:
    """A device at its typical full batch: iteration time in seconds, tokens/s and requests/s, and what binds."""

    period_s: float
    tokens_per_s: float
    requests_per_s: float
    kv_binds: bool


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """`load` is arrivals over capacity (infinite where all arrive at once); `binding` what limits the fleet."""

    load: float
    arrivals_per_s: float
    capacity_per_s: float
    binding: str


def held_tokens(workload: Workload) -> float:
    """KV tokens that a decoding request holds on average over the time it decodes."""
    prompt, output = workload.prompt_tokens.astype(np.float64), workload.output_tokens.astype(np.float64)
    return float(np.sum(output * prompt + output * (output + 1.0) / 2.0) / np.sum(output))


def pace(device: DeviceModel, workload: Workload) -> DevicePace:
    """How fast a device serves this workload when it is full."""
    held = held_tokens(workload)
    by_kv = device.kv_tokens / held
    batch = max(1, math.floor(min(device.batch_slots, by_kv)))
    period_s = device.decode.seconds(batch, round(batch * held))
    if not 0 < period_s <= LONGEST_PERIOD_S:
        took = "no time" if period_s == 0 else f"more than {LONGEST_PERIOD_S:g} s"
        raise ConfigError(
            f"latency: an iteration of {batch} requests takes {took}; expected A, B, C in seconds, one of them above 0"
        )
    mean_output = float(np.mean(workload.output_tokens))
    request_s = mean_output * period_s / batch
    if device.prefill is not None:
        request_s += mean_prefill_s(device.prefill, workload)
    return DevicePace(period_s, mean_output / request_s, 1.0 / request_s, by_kv < device.batch_slots)


def mean_prefill_s(prefill: PrefillTime, workload: Workload) -> float:
    """Mean time to prefill a prompt of this workload, over an even sample of it."""
    step = max(1, len(workload) // _SAMPLE)
    return float(np.mean([prefill.seconds(int(tokens)) for tokens in workload.prompt_tokens[::step]]))


def arrivals_per_s(workload: Workload) -> float:
    """Mean arrival rate; infinite where all requests arrive at once."""
    span_s = float(workload.arrival_s[-1] - workload.arrival_s[0])
    return len(workload) / span_s if span_s > 0 else math.inf


def estimate_load(
    workload: Workload, devices: Sequence[DeviceModel], prefill_workers: Sequence[PrefillTime] = ()
) -> LoadEstimate:
    """The load that a workload puts on devices, and on prefill workers where there are any."""
    paces = [pace(device, workload) for device in devices]
    capacity = sum(one.requests_per_s for one in paces)
    binding = "KV cache" if sum(one.kv_binds for one in paces) * 2 > len(paces) else "batch slots"
    if prefill_workers:
        times_s = [mean_prefill_s(worker, workload) for worker in prefill_workers]
        prefill_capacity = sum(1.0 / time_s if time_s > 0 else math.inf for time_s in times_s)
        if prefill_capacity < capacity:
            capacity, binding = prefill_capacity, "prefill"
    rate = arrivals_per_s(workload)
    return LoadEstimate(rate / capacity, rate, capacity, binding)


def speedup_for_load(load: LoadEstimate, target: float = TARGET_LOAD) -> float:
    """The factor, to three digits, by which arrivals must come faster for the load to be `target`."""
    if not (math.isfinite(load.load) and load.load > 0):
        return 1.0
    return float(f"{target / load.load:.3g}")
