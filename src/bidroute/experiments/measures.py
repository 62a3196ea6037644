"""The figures by which policies are judged: name, path in the JSON row, unit, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run.

    `head` is its two-line column head. `decides` marks the latencies by which the strongest baseline is chosen.
    """

    label: str
    head: str
    path: str
    higher_is_better: bool = False
    decides: bool = False

    def better(self, first: float, second: float) -> bool:
        """Whether `first` beats `second`."""
        return first > second if self.higher_is_better else first < second


MEASURES = (
    Measure("E2E mean", "E2E\nmean, s", "e2e_s.mean", decides=True),
    Measure("E2E p99", "E2E\np99, s", "e2e_s.p99", decides=True),
    Measure("TTFT mean", "TTFT\nmean, s", "ttft_s.mean", decides=True),
    Measure("TTFT p99", "TTFT\np99, s", "ttft_s.p99", decides=True),
    Measure("tokens/s", "tokens\nper s", "output_tokens_per_s", higher_is_better=True),
    Measure("goodput", "goodput\nper s", "goodput", higher_is_better=True),
    Measure("preemptions", "pre-\nempted", "preemptions"),
)
BOUNDED = (
    Measure("E2E mean over its bound", "E2E ×\nbound", "e2e_over_bound"),
    Measure("TTFT mean over its bound", "TTFT ×\nbound", "ttft_over_bound"),
    Measure("reward as a share of its bound", "reward\n÷ bound", "reward_of_bound", higher_is_better=True),
)
