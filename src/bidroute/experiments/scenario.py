"""From settings to scenarios that can be simulated: one per seed, on one fleet, under one load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.experiments.fleet_file import DeviceGroup, read_fleet
from bidroute.experiments.load import (
    DeviceModel,
    DevicePace,
    LoadEstimate,
    estimate_load,
    pace,
    speedup_for_load,
)
from bidroute.experiments.options import parse_engine, parse_mode, parse_slo
from bidroute.experiments.settings import (
    BUILTIN_KV_TOKENS,
    DEFAULT_BATCH_SLOTS,
    DEFAULT_DEVICES,
    DEFAULT_KV_TOKENS,
    DEFAULT_REQUESTS,
    ScenarioSettings,
)
from bidroute.lengths import build_predictor, predicted_tokens
from bidroute.simulator import DecodeLatency, PrefillLatency, Scenario, Slo
from bidroute.simulator.latency import (
    kv_capacity,
    latency_names,
    parse_decode_latency,
    parse_prefill_latency,
)
from bidroute.simulator.scenario import LONGEST_S
from bidroute.traces import Workload, load_trace


@dataclass(frozen=True, slots=True)
class Fleet:
    """The device groups as resolved, and for every single device its group and latency models."""

    groups: list[DeviceGroup]
    names: list[str]
    group_of: list[DeviceGroup]
    decode: list[DecodeLatency]
    prefill: list[PrefillLatency]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Scenarios by seed with the predictions their requests carry; `load` is that of the first seed."""

    settings: ScenarioSettings
    groups: list[DeviceGroup]
    scenarios: dict[int, Scenario]
    predictions: dict[int, FloatArray | None]
    load: LoadEstimate
    speedup: float
    slo: Slo

    @property
    def first(self) -> Scenario:
        """The scenario of the first seed."""
        return next(iter(self.scenarios.values()))


def prepare(settings: ScenarioSettings, seeds: list[int], groups: Sequence[DeviceGroup] | None = None) -> Experiment:
    """Read the workload, build the fleet, choose the speed-up, and make one scenario per seed.

    `groups` are device groups to use instead of those that the settings describe. Raises ConfigError or TraceError for
    anything that cannot be run.
    """
    if not seeds:
        raise ConfigError("seeds: none; expected one or more")
    mode, prefill_workers = parse_mode(settings.mode)
    engine = parse_engine(settings.engine, settings.recompute_s_per_token)
    slo = parse_slo(settings.slo)
    build_predictor(settings.lengths)  # refuses a wrong name before anything is read
    fleet = _fleet(settings, groups)
    workloads = {seed: _workload(settings, seed) for seed in seeds}
    first = workloads[seeds[0]]
    models = [
        DeviceModel(group.batch_slots, group.kv_tokens or 0, decode, prefill if mode == "aggregated" else None)
        for group, decode, prefill in zip(fleet.group_of, fleet.decode, fleet.prefill, strict=True)
    ]
    workers = [fleet.prefill[0]] * prefill_workers
    speedup = settings.speedup or _default_speedup(settings, estimate_load(first, models, workers))
    _require_time(first, speedup)
    budget = None if mode != "aggregated" else engine.max_batched_tokens if engine.budget == "told" else 0
    devices = _devices(fleet, [pace(model, first) for model in models], budget)
    _require_some_fit(first, devices, settings)
    scenarios = {
        seed: Scenario(
            workload=workload.sped_up(speedup),
            devices=devices,
            latency=tuple(fleet.decode),
            prefill=_prefill(mode, fleet),
            mode=mode,
            prefill_workers=prefill_workers,
            engine=engine,
            ttft_slo_s=slo.ttft_s,
            e2e_slo_s=slo.e2e_s,
        )
        for seed, workload in workloads.items()
    }
    predictions = {seed: predicted_tokens(settings.lengths, workloads[seed].output_tokens, seed) for seed in seeds}
    load = estimate_load(first.sped_up(speedup), models, workers)
    return Experiment(settings, fleet.groups, scenarios, predictions, load, speedup, slo)


def _workload(settings: ScenarioSettings, seed: int) -> Workload:
    requests = settings.requests or (DEFAULT_REQUESTS if settings.is_builtin else None)
    return load_trace(settings.trace, requests=requests, skip_bad_rows=settings.skip_bad_rows, seed=seed)


def _default_speedup(settings: ScenarioSettings, recorded: LoadEstimate) -> float:
    """What gives the load asked for; else as recorded for a file, and whatever loads the fleet well for a built-in."""
    if settings.load is not None:
        return speedup_for_load(recorded, settings.load)
    return speedup_for_load(recorded) if settings.is_builtin else 1.0


def _prefill(mode: str, fleet: Fleet) -> PrefillLatency | tuple[PrefillLatency, ...] | None:
    if mode == "decode":
        return None
    return fleet.prefill[0] if mode == "disaggregated" else tuple(fleet.prefill)


def _fleet(settings: ScenarioSettings, given: Sequence[DeviceGroup] | None) -> Fleet:
    if given is None:
        given = _given_groups(settings) if settings.fleet is None else read_fleet(settings.fleet)
    groups = [_resolved(group, settings, f"devices[{index}]") for index, group in enumerate(given)]
    names: list[str] = []
    group_of: list[DeviceGroup] = []
    for group in groups:
        for _ in range(group.count):
            names.append(f"{group.name}-{len(names)}")
            group_of.append(group)
    decode = {group.latency: parse_decode_latency(group.latency or "") for group in groups}
    prefill = {group.prefill: parse_prefill_latency(group.prefill or "") for group in groups}
    return Fleet(
        groups,
        names,
        group_of,
        [decode[group.latency] for group in group_of],
        [prefill[group.prefill] for group in group_of],
    )


def _given_groups(settings: ScenarioSettings) -> list[DeviceGroup]:
    """The one group that the options describe."""
    fallback = BUILTIN_KV_TOKENS.get(settings.trace, DEFAULT_KV_TOKENS)
    known = kv_capacity(settings.latency) if settings.latency in latency_names() else fallback
    return [
        DeviceGroup(
            batch_slots=settings.batch_slots or DEFAULT_BATCH_SLOTS,
            kv_tokens=settings.kv_tokens or known,
            count=settings.devices or DEFAULT_DEVICES,
        )
    ]


def _resolved(group: DeviceGroup, settings: ScenarioSettings, place: str) -> DeviceGroup:
    """The group with its defaults filled in from the settings and from its latency table."""
    latency = group.latency or settings.latency
    kv_tokens = group.kv_tokens
    if kv_tokens is None:
        if latency not in latency_names():
            raise ConfigError(f"{settings.fleet}: {place}.kv_tokens: missing; expected a whole number of KV tokens")
        kv_tokens = kv_capacity(latency)
    try:
        decode, prefill = parse_decode_latency(latency), parse_prefill_latency(group.prefill or settings.prefill)
    except ConfigError as problem:
        raise ConfigError(f"{settings.fleet}: {place}: {problem}" if settings.fleet else str(problem)) from None
    return DeviceGroup(
        batch_slots=group.batch_slots,
        kv_tokens=kv_tokens,
        name=group.name,
        count=group.count,
        block_size=group.block_size or 1,
        latency=decode.name,
        prefill=prefill.name,
        speed=group.speed,
        token_budget=group.token_budget,
    )


def _devices(fleet: Fleet, paces: list[DevicePace], budget: int | None) -> tuple[Device, ...]:
    """The devices, their pace derived from their latency at a typical full batch; speeds average 1.

    Each has the token `budget` unless its group has its own; None where no device prefills.
    """
    mean_tokens_per_s = math.fsum(one.tokens_per_s for one in paces) / len(paces)
    return tuple(
        Device(
            name,
            group.batch_slots,
            group.kv_tokens or 0,
            block_size=group.block_size or 1,
            period_s=one.period_s,
            speed=group.speed or one.tokens_per_s / mean_tokens_per_s,
            token_budget=0 if budget is None else budget if group.token_budget is None else group.token_budget,
        )
        for name, group, one in zip(fleet.names, fleet.group_of, paces, strict=True)
    )


def _require_time(workload: Workload, speedup: float) -> None:
    span_s = float(workload.arrival_s[-1]) / speedup
    if span_s > LONGEST_S:
        raise ConfigError(
            f"the requests of {workload.name} arrive over {span_s:.3g} s at speedup {speedup:g}; expected "
            f"{LONGEST_S:g} s at most: check the unit of its times, or raise --speedup"
        )


def _require_some_fit(workload: Workload, devices: tuple[Device, ...], settings: ScenarioSettings) -> None:
    smallest = int((workload.prompt_tokens + workload.output_tokens).min())
    if not any(device.fits(smallest) for device in devices):
        largest = max(device.kv_tokens for device in devices)
        remedy = f"kv_tokens in {settings.fleet}" if settings.fleet else "--kv-tokens"
        raise ConfigError(
            f"every request of {workload.name} needs {smallest} KV tokens or more and no device holds more than "
            f"{largest}: give more with {remedy}"
        )
