"""The trace formats, in the order in which files are tried."""

from __future__ import annotations

from bidroute.errors import ConfigError, TraceError
from bidroute.traces.azure import AzureTrace
from bidroute.traces.base import TraceFormat
from bidroute.traces.burstgpt import BurstGptTrace
from bidroute.traces.generic_csv import GenericCsv
from bidroute.traces.mooncake import MooncakeTrace
from bidroute.traces.sharegpt import ShareGptTrace, ShareGptTurns
from bidroute.traces.vidur import VidurTrace

FORMATS: dict[str, type[TraceFormat]] = {}


def register_format(kind: type[TraceFormat]) -> type[TraceFormat]:
    """Add a format; it is tried after those that are there. Raises ConfigError when its name is taken."""
    if kind.name in FORMATS:
        raise ConfigError(f"trace format {kind.name!r} is registered twice; choose another name")
    FORMATS[kind.name] = kind
    return kind


for _kind in (AzureTrace, BurstGptTrace, VidurTrace, MooncakeTrace, ShareGptTrace, ShareGptTurns, GenericCsv):
    register_format(_kind)


def named_format(name: str) -> type[TraceFormat]:
    """The format of this name. Raises ConfigError, listing the names, when there is none."""
    if name not in FORMATS:
        raise ConfigError(f"trace format {name!r} is unknown; choose from: {', '.join(FORMATS)}")
    return FORMATS[name]


def detect_format(head: str, source: str) -> type[TraceFormat]:
    """The first format that recognises the beginning of a file. Raises TraceError when none does."""
    for kind in FORMATS.values():
        if kind.recognises(head):
            return kind
    first_line = head.lstrip().partition("\n")[0].strip()
    raise TraceError(
        f"{source}: no known trace format; it begins with {first_line[:60]!r}; expected {', '.join(FORMATS)} "
        "(a CSV needs a header line), or name the format and its columns"
    )
