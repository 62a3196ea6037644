"""What goes wrong, case by case: each says what a router would have to bear, and makes the scenario of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from bidroute.errors import ConfigError
from bidroute.experiments import variations
from bidroute.experiments.fleet_file import DeviceGroup
from bidroute.experiments.load import held_tokens
from bidroute.simulator import Scenario

Change = Callable[[Scenario], Scenario]
# What makes one worker slower than another: its times are those of the fastest, times this.
_TIMES_S = (0.006, 5e-5, 5.086e-8)


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `lengths` is what the router knows; predictions are multiplied by `bias`.

    `load` is arrivals over estimated capacity (None: left as `shape` made it). `shape` changes the requests, before the
    load is set; `disturb` the arrivals or the fleet, after it. `fleet` replaces the alike devices: a factor of time,
    batch slots, and KV in multiples of a device's, for each.
    """

    name: str
    group: str
    lengths: str = "none"
    bias: float = 1.0
    load: float | None = 1.0
    shape: Change | None = None
    disturb: Change | None = None
    fleet: tuple[tuple[float, int, float], ...] = ()

    def groups(self, kv_tokens: int) -> list[DeviceGroup] | None:
        """The unlike devices; None where all are alike."""
        return [
            DeviceGroup(
                batch_slots=slots,
                kv_tokens=round(share * kv_tokens),
                name=f"unlike-{place}",
                latency="affine:" + ",".join(f"{part * times:g}" for part in _TIMES_S),
            )
            for place, (times, slots, share) in enumerate(self.fleet)
        ] or None

    def scenario(self, scenario: Scenario) -> Scenario:
        """The scenario of this case, made from an ordinary one."""
        if self.shape is not None:
            scenario = self.shape(scenario)
        if self.load is not None:
            scenario = variations.at_load(scenario, self.load)
        return scenario if self.disturb is None else self.disturb(scenario)


def slots_bind(scenario: Scenario) -> Scenario:
    """As many slots as the KV would have filled, and twice that KV."""
    held = held_tokens(scenario.workload)
    devices = tuple(
        replace(one, batch_slots=max(1, int(one.kv_tokens / held)), kv_tokens=2 * one.kv_tokens)
        for one in scenario.devices
    )
    return replace(scenario, devices=devices)


def _mix(prompt_share: float) -> Change:
    def change(scenario: Scenario) -> Scenario:
        return variations.mixed(scenario, prompt_share, min(device.kv_tokens for device in scenario.devices) // 2)

    return change


NOISE = "length noise"
CASES = (
    Case("no lengths", NOISE),
    *(Case(f"noise {sigma:g}", NOISE, f"noisy:{sigma:g}") for sigma in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    Case("noise 0.6, ×½", "biased predictions", "noisy:0.6", bias=0.5),
    Case("noise 0.6, ×2", "biased predictions", "noisy:0.6", bias=2.0),
    Case("load 0.3", "load", load=0.3),
    Case("load 0.7", "load", load=0.7),
    Case("load 1.3", "load", load=1.3),
    Case("rate ×1.5 mid-run", "arrivals", load=0.8, disturb=partial(variations.rate_shift, factor=1.5)),
    Case("rate ÷1.5 mid-run", "arrivals", load=1.2, disturb=partial(variations.rate_shift, factor=1 / 1.5)),
    Case("bursts ×5", "arrivals", load=0.8, disturb=partial(variations.bursts, block=100, factor=5.0)),
    Case("all at once", "arrivals", disturb=variations.at_once),
    Case("prompt:output 4:1", "mix", shape=_mix(0.8)),
    Case("prompt:output 1:4", "mix", shape=_mix(0.2)),
    Case("fast small + slow big", "unlike devices", fleet=((1.0, 24, 0.48), (1 / 0.35, 128, 2.4))),
    Case("three, ever slower", "unlike devices", fleet=((1.0, 128, 2.0), (1 / 0.6, 96, 1.2), (1 / 0.35, 64, 0.8))),
    Case("device lost", "fleet changes", load=0.75, disturb=variations.losing),
    Case("device joined", "fleet changes", load=0.75, disturb=variations.joining),
    Case("lost, then joined", "fleet changes", load=0.75, disturb=variations.replacing),
    Case("slots bind", "slots bind", load=1.3, shape=slots_bind),
    Case("slots bind, noise 0.6", "slots bind", "noisy:0.6", load=1.3, shape=slots_bind),
)


def chosen_cases(names: list[str] | None) -> list[Case]:
    """The cases named, by name or by group; all for None. Raises ConfigError for others."""
    if names is None:
        return list(CASES)
    for name in names:
        if not any(name in (case.name, case.group) for case in CASES):
            groups = ", ".join(dict.fromkeys(case.group for case in CASES))
            raise ConfigError(f"case {name!r} is unknown; choose a group ({groups}) or a case of the table")
    return [case for case in CASES if case.name in names or case.group in names]
