"""What a comparison yields: one row per policy and seed, with the curves and columns that reports draw from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.experiments.measures import BOUNDED, MEASURES, Measure

Row = dict[str, Any]
QUANTILES: FloatArray = np.concatenate([np.linspace(0.0, 0.98, 99), np.linspace(0.982, 1.0, 10)])


@dataclass(frozen=True, slots=True)
class Timeline:
    """How one run went, on a common time axis; every array has shape [points].

    `slots_used` and `kv_used` are fractions of the fleet's capacity; `waiting` counts the router's queue and
    `pending` the engines' own queues; `held` maps a reason to the requests held for it. Prices are means over
    the devices for the near future, in reward units per period, for all slots (all KV, all tokens of an iteration)
    of a device; None without, `token_price` also where no device has a token budget.
    """

    time_s: FloatArray
    waiting: FloatArray
    pending: FloatArray
    slots_used: FloatArray
    kv_used: FloatArray
    held: dict[str, FloatArray]
    slot_price: FloatArray | None = None
    kv_price: FloatArray | None = None
    token_price: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """One row per request of a run, each of shape [n]; times are NaN for requests that were refused.

    `held_s` is from the router's queue (after the prefill, in a disaggregated cluster) into a batch.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    device: IntArray
    ttft_s: FloatArray
    e2e_s: FloatArray
    held_s: FloatArray
    preemptions: IntArray


@dataclass(frozen=True, slots=True)
class Result:
    """One run: its JSON row, its latency distributions at QUANTILES (seconds), and what else was recorded."""

    policy: str
    seed: int
    row: Row
    e2e_quantiles_s: FloatArray
    ttft_quantiles_s: FloatArray
    timeline: Timeline | None = None
    requests: RequestColumns | None = None

    def value(self, path: str) -> float:
        """A figure of the row by its dotted path, such as `e2e_s.p99`; NaN where the run has none."""
        return figure_of(self.row, path)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds: the median and half of the range (maximum − minimum)."""

    median: float
    half_range: float

    @classmethod
    def of(cls, values: FloatArray) -> Spread:
        """That of a figure's values over the seeds, float64[seeds]."""
        return cls(median(values), float(np.ptp(values)) / 2.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every policy on the same arrivals, for every seed.

    `scenario` is plain JSON data: all settings as resolved, and the load they amount to.
    """

    scenario: dict[str, Any]
    results: list[Result]
    notes: list[str] = field(default_factory=list)

    @property
    def policies(self) -> list[str]:
        """The policies compared, in the order asked for."""
        return list(dict.fromkeys(result.policy for result in self.results))

    @property
    def seeds(self) -> list[int]:
        """The seeds run, ascending."""
        return sorted({result.seed for result in self.results})

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The figures that its runs have: the usual ones, and "× of the bound" where bounds were computed."""
        bounded = all(measure.path in result.row for measure in BOUNDED for result in self.results)
        return MEASURES + BOUNDED if bounded else MEASURES

    def of(self, policy: str) -> list[Result]:
        """The runs of one policy, by seed."""
        return sorted((result for result in self.results if result.policy == policy), key=lambda result: result.seed)

    def values(self, policy: str, path: str) -> FloatArray:
        """One figure of one policy over the seeds, float64[seeds]."""
        return np.array([result.value(path) for result in self.of(policy)])

    def spread(self, policy: str, path: str) -> Spread:
        """Median and half-range of a figure over the seeds."""
        return Spread.of(self.values(policy, path))


def figure_of(row: Row, path: str) -> float:
    """A figure by its dotted path, such as `e2e_s.p99`; NaN where the row has None."""
    found: Any = row
    for key in path.split("."):
        found = found[key]
    return math.nan if found is None else float(found)


def quantiles(values_s: FloatArray) -> FloatArray:
    """The values at QUANTILES, float64[len(QUANTILES)]; NaN throughout where none is finite."""
    finite = values_s[np.isfinite(values_s)]
    if len(finite) == 0:
        return np.full(len(QUANTILES), np.nan)
    return np.asarray(np.quantile(finite, QUANTILES), dtype=np.float64)
