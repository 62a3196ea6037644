"""The figures of a run: one flat record per policy and seed, as comparisons report it."""

from __future__ import annotations

import math

import numpy as np

from bidroute.core.figures import RequestTimes, Slo, figures, percentiles, times_of
from bidroute.simulator.result import Outcome, RunResult


def request_times(result: RunResult) -> RequestTimes:
    """The latencies of the finished requests."""
    done = result.status == Outcome.FINISHED
    return times_of(result.arrival_s[done], result.first_token_s[done], result.end_s[done], result.output_tokens[done])


def summary(result: RunResult, slo: Slo | None = None) -> dict[str, object]:
    """The record of a run: its figures (`core.figures`), where rates count from the first arrival to the last end."""
    done = result.status == Outcome.FINISHED
    span_s = float(np.max(result.end_s[done]) - result.arrival_s[0]) if done.any() else math.nan
    return {
        **figures(request_times(result), int(result.output_tokens[done].sum()), span_s, slo or Slo()),
        "preemptions": int(result.preemptions.sum()),
        "wasted_tokens": result.wasted_tokens,
        "refused": int((result.status == Outcome.REFUSED).sum()),
        "unfinished": int((result.status == Outcome.UNFINISHED).sum()),
        "decision_us": percentiles(result.decision_us, (50, 99)),
        "wall_s": result.wall_s,
        "cpu_s": result.cpu_s,
    }
