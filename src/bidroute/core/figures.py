"""The figures by which runs are judged, simulated or live: distributions of latency, rates, goodput."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as goodput: first token, end to end, and time per output token, in seconds."""

    ttft_s: float = 2.0
    e2e_s: float = 30.0
    tpot_s: float = 0.1

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("e2e_s", self.e2e_s), ("tpot_s", self.tpot_s)):
            if math.isnan(value) or value <= 0:
                raise ConfigError(f"SLO {name}={value}; expected a positive number of seconds (or infinity)")


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Of the finished requests, float64[k]; `tpot_s` is NaN for those of a single token."""

    e2e_s: FloatArray
    ttft_s: FloatArray
    tpot_s: FloatArray


def times_of(arrival_s: FloatArray, first_s: FloatArray, end_s: FloatArray, output_tokens: IntArray) -> RequestTimes:
    """E2E = end − arrival, TTFT = first token − arrival, TPOT = (end − first token)/(output tokens − 1)."""
    later_tokens = output_tokens - 1
    tpot_s = np.full(len(end_s), np.nan)
    np.divide(end_s - first_s, later_tokens, out=tpot_s, where=later_tokens > 0)
    return RequestTimes(end_s - arrival_s, first_s - arrival_s, tpot_s)


def figures(times: RequestTimes, output_tokens: int, span_s: float, slo: Slo) -> dict[str, object]:
    """Latency distributions and rates of the finished requests, which took `span_s` and made `output_tokens` in all.

    `e2e_s`, `ttft_s`, `tpot_s` hold mean, p50, p90, p95, p99; `goodput` counts the requests that met every SLO.
    Percentiles of nothing are NaN.
    """
    met = (times.ttft_s <= slo.ttft_s) & (times.e2e_s <= slo.e2e_s)
    met &= np.isnan(times.tpot_s) | (times.tpot_s <= slo.tpot_s)
    return {
        "e2e_s": distribution(times.e2e_s),
        "ttft_s": distribution(times.ttft_s),
        "tpot_s": distribution(times.tpot_s[~np.isnan(times.tpot_s)]),
        "output_tokens_per_s": _rate(output_tokens, span_s),
        "requests_per_s": _rate(len(times.e2e_s), span_s),
        "goodput": _rate(int(met.sum()), span_s),
    }


def distribution(values: FloatArray) -> dict[str, float]:
    """Mean and percentiles 50, 90, 95, 99; NaN when there are no values."""
    mean = float(np.mean(values)) if len(values) else math.nan
    return {"mean": mean, **percentiles(values, PERCENTILES)}


def percentiles(values: FloatArray, which: tuple[int, ...]) -> dict[str, float]:
    """`p50` and so on, linearly interpolated; NaN when there are no values."""
    if len(values) == 0:
        return {f"p{p}": math.nan for p in which}
    return {f"p{p}": float(value) for p, value in zip(which, np.percentile(values, which), strict=True)}


def _rate(count: int, span_s: float) -> float:
    return count / span_s if span_s > 0 else 0.0
