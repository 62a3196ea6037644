"""The scenario as plain JSON data: everything that is needed to read a result, or to get it again."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from bidroute import __version__
from bidroute.core.queue import IntArray
from bidroute.experiments.load import arrivals_per_s
from bidroute.experiments.scenario import Experiment
from bidroute.simulator import Scenario
from bidroute.simulator.engines import block_size_of
from bidroute.traces import Workload


def describe(experiment: Experiment) -> dict[str, Any]:
    """All settings as resolved, the workload's figures, the fleet and the load they amount to."""
    settings, scenario = experiment.settings, experiment.first
    decode_only = scenario.mode == "decode"
    return {
        "trace": settings.trace,
        "mode": settings.mode,
        "lengths": settings.lengths,
        "objective": settings.objective,
        "seeds": list(experiment.scenarios),
        "workload": workload_data(scenario.workload, experiment.speedup),
        "fleet": _fleet(experiment, decode_only),
        "engine": {
            **asdict(scenario.engine),
            "block_size": _common_block_size(scenario),
            "max_batched_tokens": None if decode_only else scenario.engine.max_batched_tokens,
        },
        "load": {
            "load": finite(experiment.load.load),
            "capacity_requests_per_s": experiment.load.capacity_per_s,
            "binding": experiment.load.binding,
        },
        "slo": {name: finite(value) for name, value in asdict(experiment.slo).items()},
        "version": __version__,
    }


def workload_data(workload: Workload, speedup: float) -> dict[str, Any]:
    """The figures of a workload that arrives `speedup` times faster than its trace."""
    return {
        "requests": len(workload),
        "skipped_rows": workload.skipped_rows,
        "speedup": speedup,
        "duration_s": float(workload.arrival_s[-1] - workload.arrival_s[0]),
        "requests_per_s": finite(arrivals_per_s(workload)),
        "prompt_tokens": _distribution(workload.prompt_tokens),
        "output_tokens": _distribution(workload.output_tokens),
    }


def _distribution(tokens: IntArray) -> dict[str, float]:
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, (50, 90, 99)))
    return {"mean": float(np.mean(tokens)), "p50": p50, "p90": p90, "p99": p99, "max": float(np.max(tokens))}


def _fleet(experiment: Experiment, decode_only: bool) -> list[dict[str, Any]]:
    """The device groups, with the relative speed and the block size that their devices got."""
    groups, first = [], 0
    for group in experiment.groups:
        data: dict[str, Any] = {**msgspec.to_builtins(group), "speed": experiment.first.devices[first].speed}
        if decode_only:
            del data["prefill"]
        data["block_size"] = block_size_of(experiment.first, experiment.first.devices[first])
        groups.append(data)
        first += group.count
    return groups


def _common_block_size(scenario: Scenario) -> int | None:
    """Of all devices; None where they differ, and each group says its own."""
    sizes = {block_size_of(scenario, device) for device in scenario.devices}
    return sizes.pop() if len(sizes) == 1 else None


def finite(value: float) -> float | None:
    """The number, or None where it does not exist in JSON."""
    return value if math.isfinite(value) else None
