"""Makes Vidur know our policies and execution times, and reads its options with ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from vidur.config.config import BaseGlobalSchedulerConfig
from vidur.config.utils import get_all_subclasses

from bidroute.errors import ConfigError
from bidroute.integrations.vidur.latency import register_latency
from bidroute.integrations.vidur.options import BidrouteSimulationConfig
from bidroute.integrations.vidur.policies import register_policies

SCHEDULER_OPTION = "--global_scheduler_config_type"


def prepare() -> None:
    """Register everything with Vidur; doing it twice does no harm."""
    register_latency()
    register_policies()


def parse_options(arguments: Sequence[str]) -> BidrouteSimulationConfig:
    """The configuration that these arguments describe, with Vidur's own parser: wrong options end the program.

    Raises ConfigError for a global scheduler that nobody knows, which Vidur would only stumble over.
    """
    prepare()
    before, sys.argv = sys.argv, ["bidroute.integrations.vidur", *arguments]
    try:
        _require_scheduler(arguments)
        config: BidrouteSimulationConfig = BidrouteSimulationConfig.create_from_cli_args()
    finally:
        sys.argv = before
    return config


def scheduler_config(name: str) -> BaseGlobalSchedulerConfig:
    """The configuration of a global scheduler, Vidur's own or ours, by name. Raises ConfigError, listing the names."""
    prepare()
    known = {str(one.get_type()): one for one in get_all_subclasses(BaseGlobalSchedulerConfig)}
    if name.lower() not in known:
        raise ConfigError(f"global scheduler {name!r} is unknown; choose from: {', '.join(sorted(known))}")
    return known[name.lower()]()


def _require_scheduler(arguments: Sequence[str]) -> None:
    """Check the last scheduler that is named, which is the one that counts."""
    words = [part for argument in arguments for part in argument.split("=", 1)]
    named = [value for option, value in pairwise(words) if option == SCHEDULER_OPTION]
    if named:
        scheduler_config(named[-1])
