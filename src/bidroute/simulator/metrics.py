"""The figures of a run: one flat record per policy and seed, as comparisons report it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.simulator.result import Outcome, RunResult

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


def request_times(result: RunResult) -> RequestTimes:
    """E2E = end − arrival, TTFT = first token − arrival, TPOT = (end − first token)/(output tokens − 1)."""
    done = result.status == Outcome.FINISHED
    arrival_s, first_s, end_s = result.arrival_s[done], result.first_token_s[done], result.end_s[done]
    later_tokens = result.output_tokens[done] - 1
    tpot_s = np.full(len(end_s), np.nan)
    np.divide(end_s - first_s, later_tokens, out=tpot_s, where=later_tokens > 0)
    return RequestTimes(end_s - arrival_s, first_s - arrival_s, tpot_s)


def summary(result: RunResult, slo: Slo | None = None) -> dict[str, object]:
    """The record of a run.

    `e2e_s`, `ttft_s`, `tpot_s` hold mean, p50, p90, p95, p99 over the finished requests; rates are per second from
    the first arrival to the last end; `goodput` counts the requests that met every SLO. Percentiles of nothing
    are NaN.
    """
    times, slo = request_times(result), slo or Slo()
    done = result.status == Outcome.FINISHED
    span_s = float(np.max(result.end_s[done]) - result.arrival_s[0]) if done.any() else math.nan
    met = (times.ttft_s <= slo.ttft_s) & (times.e2e_s <= slo.e2e_s)
    met &= np.isnan(times.tpot_s) | (times.tpot_s <= slo.tpot_s)
    return {
        "e2e_s": distribution(times.e2e_s),
        "ttft_s": distribution(times.ttft_s),
        "tpot_s": distribution(times.tpot_s[~np.isnan(times.tpot_s)]),
        "output_tokens_per_s": _rate(int(result.output_tokens[done].sum()), span_s),
        "requests_per_s": _rate(int(done.sum()), span_s),
        "goodput": _rate(int(met.sum()), span_s),
        "preemptions": int(result.preemptions.sum()),
        "wasted_tokens": result.wasted_tokens,
        "refused": int((result.status == Outcome.REFUSED).sum()),
        "unfinished": int((result.status == Outcome.UNFINISHED).sum()),
        "decision_us": percentiles(result.decision_us, (50, 99)),
        "wall_s": result.wall_s,
        "cpu_s": result.cpu_s,
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
