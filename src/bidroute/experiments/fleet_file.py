"""Fleet files: YAML that lists unlike devices.

devices:
  - name: h100            # any name; copies get a number
    count: 2              # how many alike (1)
    batch_slots: 256
    kv_tokens: 432992     # may be left out where `latency` names a packaged table
    block_size: 16        # (the engine's)
    latency: llama-3.1-8b-h100     # affine:A,B,C in seconds, or a packaged table (--latency)
    prefill: affine:0.005,4e-05    # (--prefill)
    speed: 1.5            # relative throughput, for weighted policies (derived from latency)
    token_budget: 2048    # per iteration, mode aggregated (the engine's max_batched_tokens)
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bidroute.errors import ConfigError
from bidroute.experiments.settings import MOST_BATCH_SLOTS, MOST_DEVICES, MOST_KV_TOKENS
from bidroute.yaml_files import read_yaml

Slots = Annotated[int, Meta(ge=1, le=MOST_BATCH_SLOTS)]
Tokens = Annotated[int, Meta(ge=1, le=MOST_KV_TOKENS)]
Copies = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]


class DeviceGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Some devices that are alike; None means the default."""

    batch_slots: Slots
    kv_tokens: Tokens | None = None
    name: Annotated[str, Meta(min_length=1)] = "device"
    count: Copies = 1
    block_size: Tokens | None = None
    latency: str | None = None
    prefill: str | None = None
    speed: Annotated[float, Meta(gt=0)] | None = None
    token_budget: Tokens | None = None


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document: one list."""

    devices: Annotated[list[DeviceGroup], Meta(min_length=1)]


def read_fleet(path: Path) -> list[DeviceGroup]:
    """The groups of a fleet file. Raises ConfigError naming the file and the field."""
    document = read_yaml(path, "fleet file", "`devices:` and a list under it")
    try:
        fleet = msgspec.convert(document, FleetFile)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{path}: {_field_message(str(problem), document)}") from None
    count = sum(group.count for group in fleet.devices)
    if count > MOST_DEVICES:
        raise ConfigError(f"{path}: {count} devices; expected {MOST_DEVICES} at most; lower count")
    for index, group in enumerate(fleet.devices):
        if group.speed is not None and not math.isfinite(group.speed):
            raise ConfigError(f"{path}: devices[{index}].speed: {group.speed}; expected a positive number")
    return fleet.devices


def _field_message(message: str, document: Any) -> str:
    """Turn "Expected `int`, got `str` - at `$.devices[0].count`" into "devices[0].count: expected int, got 'two'"."""
    found = re.fullmatch(r"(.*?)(?: - at `\$\.?(.*)`)?", message, flags=re.DOTALL)
    what, field = (found.group(1), found.group(2)) if found else (message, None)
    what = what.replace("`", "").replace("\n", " ")
    what = what[0].lower() + what[1:]
    if not field:
        return f"{what}; expected `devices:` and a list under it"
    given = _at(document, field)
    if what.startswith("expected") and isinstance(given, int | float | str):
        what = f"{what.partition(', got')[0]}, got {given!r}"
    elif "field" in what:
        what = f"{what}; the fields are {', '.join(DeviceGroup.__struct_fields__)}"
    return f"{field}: {what}"


def _at(document: Any, field: str) -> Any:
    """What a document has at a path such as `devices[0].count`."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", field):
        document = document[int(index)] if index else document[name]
    return document
