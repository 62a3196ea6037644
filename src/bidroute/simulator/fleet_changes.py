"""Devices that are lost or join while a run is under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bidroute.core.devices import Device
from bidroute.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FleetChange:
    """At `time_s` the device with this index in the scenario joins the fleet, or is lost with all it holds."""

    time_s: float
    device: int
    joins: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_s) and self.time_s >= 0):
            raise ConfigError(f"fleet change at {self.time_s} s; expected a finite time, 0 or later")


def in_order(changes: Sequence[FleetChange]) -> list[FleetChange]:
    """The changes by time; of one moment as they were given."""
    return sorted(changes, key=lambda change: change.time_s)


def there_at_first(devices: Sequence[Device], changes: Sequence[FleetChange]) -> int:
    """How many devices, the first ones, are there from the start: all that join in no change."""
    return len(devices) - sum(change.joins for change in changes)


def check_changes(devices: Sequence[Device], changes: Sequence[FleetChange]) -> None:
    """Raise ConfigError unless devices join in order of their index, leave once, and one is there at any time."""
    joined = there_at_first(devices, changes)
    there = set(range(joined))
    for change in in_order(changes):
        if change.joins and change.device == joined:
            there.add(change.device)
            joined += 1
        elif not change.joins and change.device in there:
            there.remove(change.device)
        else:
            expected = "one that is there" if not change.joins else f"the next that is not there yet, {joined}"
            what = "joins" if change.joins else "leaves"
            raise ConfigError(f"device {change.device} {what} at {change.time_s:g} s; expected {expected}")
        if not there:
            raise ConfigError(f"no device is left at {change.time_s:g} s; expected one at any time: let another join")
