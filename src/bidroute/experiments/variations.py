"""Scenarios made from others: another load, other arrivals, other lengths, a fleet that changes.

Each function gives a new scenario with one thing changed and leaves the rest alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray, IntArray
from bidroute.experiments.load import DeviceModel, estimate_load
from bidroute.simulator import DecodeLatency, FleetChange, PrefillLatency, Scenario
from bidroute.traces import Workload

# Of the time between the first and the last arrival, at which a fleet changes.
EARLY, MIDDLE, LATE = 1 / 3, 1 / 2, 2 / 3


def at_load(scenario: Scenario, load: float) -> Scenario:
    """Arrivals faster or slower, so that they come at `load` of what the fleet is estimated to serve."""
    now = estimate_load(scenario.workload, device_models(scenario)).load
    if not (math.isfinite(now) and now > 0):
        return scenario
    return replace(scenario, workload=scenario.workload.sped_up(load / now))


def device_models(scenario: Scenario) -> list[DeviceModel]:
    """The devices of a scenario as load estimates need them."""
    devices = range(len(scenario.devices))
    prefill = scenario.prefill if scenario.mode == "aggregated" else None
    models = []
    for index in devices:
        device = scenario.devices[index]
        decode = scenario.latency[index] if isinstance(scenario.latency, tuple) else scenario.latency
        own = prefill[index] if isinstance(prefill, tuple) else prefill
        models.append(DeviceModel(device.batch_slots, device.kv_tokens, decode, own))
    return models


def rate_shift(scenario: Scenario, factor: float) -> Scenario:
    """From the middle request on, arrivals come `factor` times faster."""
    gaps_s = np.diff(scenario.workload.arrival_s, prepend=0.0)
    gaps_s[len(gaps_s) // 2 :] /= factor
    return _arriving(scenario, np.cumsum(gaps_s))


def bursts(scenario: Scenario, block: int, factor: float) -> Scenario:
    """Every `block` requests come in the first 1/`factor` of their time, then nobody until the next block's."""
    arrival_s = scenario.workload.arrival_s
    first_s = arrival_s[(np.arange(len(arrival_s)) // block) * block]
    return _arriving(scenario, first_s + (arrival_s - first_s) / factor)


def at_once(scenario: Scenario) -> Scenario:
    """Everybody arrives at the same moment."""
    return _arriving(scenario, np.zeros(len(scenario.workload)))


def mixed(scenario: Scenario, prompt_share: float, most_tokens: int) -> Scenario:
    """Prompts and outputs stretched so that `prompt_share` of all tokens are prompt tokens, their sum unchanged.

    A request longer than `most_tokens` in all is cut to fit.
    """
    workload = scenario.workload
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    mean = float(np.mean(prompts + outputs))
    prompts = _stretched(prompts, prompt_share * mean, most_tokens - 1)
    outputs = np.minimum(_stretched(outputs, (1.0 - prompt_share) * mean, most_tokens), most_tokens - prompts)
    changed = Workload(workload.name, workload.arrival_s, prompts, outputs, workload.skipped_rows)
    return replace(scenario, workload=changed)


def losing(scenario: Scenario) -> Scenario:
    """The first device is lost in the middle."""
    return replace(scenario, changes=(FleetChange(_time_s(scenario, MIDDLE), 0, joins=False),))


def joining(scenario: Scenario) -> Scenario:
    """The last device joins in the middle."""
    return replace(scenario, changes=(FleetChange(_time_s(scenario, MIDDLE), len(scenario.devices) - 1, joins=True),))


def replacing(scenario: Scenario) -> Scenario:
    """The first device is lost after a third of the time, and one like it joins after two thirds."""
    new = replace(scenario.devices[0], name="new")
    devices: tuple[Device, ...] = (*scenario.devices, new)
    lost = FleetChange(_time_s(scenario, EARLY), 0, joins=False)
    joined = FleetChange(_time_s(scenario, LATE), len(devices) - 1, joins=True)
    latency: DecodeLatency | tuple[DecodeLatency, ...] = scenario.latency
    prefill: PrefillLatency | tuple[PrefillLatency, ...] | None = scenario.prefill
    if isinstance(latency, tuple):
        latency = (*latency, latency[0])
    if isinstance(prefill, tuple):
        prefill = (*prefill, prefill[0])
    return replace(scenario, devices=devices, latency=latency, prefill=prefill, changes=(lost, joined))


def _arriving(scenario: Scenario, arrival_s: FloatArray) -> Scenario:
    return replace(scenario, workload=replace(scenario.workload, arrival_s=arrival_s))


def _stretched(tokens: IntArray, mean: float, most: int) -> IntArray:
    stretched: IntArray = np.rint(tokens * (mean / float(np.mean(tokens)))).astype(np.int64).clip(1, most)
    return stretched


def _time_s(scenario: Scenario, share: float) -> float:
    return float(share * scenario.workload.arrival_s[-1])
