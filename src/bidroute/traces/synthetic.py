"""Built-in workloads, fitted to the published percentiles of public traces (docs/traces.md has the table)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from bidroute.errors import ConfigError
from bidroute.traces.arrivals import bursty_arrivals
from bidroute.traces.quantiles import FittedLengths
from bidroute.traces.workload import Workload

DEFAULT_REQUESTS = 10_000


@dataclass(frozen=True, slots=True)
class SyntheticSpec:
    """Lengths by shortest, p50, p90, p99, longest and mean; arrivals by rate and burstiness (see arrivals.py)."""

    prompt: tuple[int, float, float, float, int, float]
    output: tuple[int, float, float, float, int, float]
    rate_per_s: float
    rate_variation: float
    episode_s: float


SYNTHETIC: dict[str, SyntheticSpec] = {
    # Azure conversation 2023: 19 366 requests in 3502 s
    "azure-conv-like": SyntheticSpec(
        prompt=(8, 1020, 2734, 4142, 14_000, 1155),
        output=(7, 129, 424, 601, 1000, 211),
        rate_per_s=19_366 / 3502,
        rate_variation=0.25,
        episode_s=30.0,
    ),
    # Azure code 2023: 8819 in 3436 s, very bursty
    "azure-code-like": SyntheticSpec(
        prompt=(8, 1469, 5188, 7436, 7500, 2048),
        output=(1, 13, 55, 251, 1900, 28),
        rate_per_s=8819 / 3436,
        rate_variation=2.0,
        episode_s=10.0,
    ),
    # ServeGen deepseek-r1, morning: 47 022 requests, taken to be of one hour
    "reasoning-like": SyntheticSpec(
        prompt=(8, 120, 1353, 20_070, 60_000, 1075),
        output=(8, 2018, 6885, 14_748, 32_000, 2979),
        rate_per_s=47_022 / 3600,
        rate_variation=0.5,
        episode_s=10.0,
    ),
    # Mooncake conversation: 12 031 in 3537 s
    "long-context-like": SyntheticSpec(
        prompt=(500, 6909, 27_367, 85_400, 126_000, 12_035),
        output=(4, 350, 597, 1119, 2000, 343),
        rate_per_s=12_031 / 3537,
        rate_variation=0.5,
        episode_s=20.0,
    ),
}


def build_workload(name: str, requests: int, seed: int) -> Workload:
    """`requests` of the built-in workload `name`, the same for the same seed. Raises ConfigError for other names."""
    if name not in SYNTHETIC:
        raise ConfigError(f"built-in workload {name!r} is unknown; choose from: {', '.join(SYNTHETIC)}")
    if requests < 1:
        raise ConfigError(f"requests: {requests}; expected 1 or more")
    spec = SYNTHETIC[name]
    random = np.random.default_rng(seed)
    return Workload(
        name,
        bursty_arrivals(requests, spec.rate_per_s, spec.rate_variation, spec.episode_s, random),
        _lengths(spec.prompt).sample(requests, random),
        _lengths(spec.output).sample(requests, random),
    )


@cache
def _lengths(figures: tuple[int, float, float, float, int, float]) -> FittedLengths:
    shortest, p50, p90, p99, longest, mean = figures
    return FittedLengths(shortest=shortest, p50=p50, p90=p90, p99=p99, longest=longest, mean=mean)
