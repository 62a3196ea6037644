"""The figures by which policies are judged: name, path in the JSON row, unit, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run. `decides` marks the latency figures by which the strongest baseline is chosen."""

    label: str
    path: str
    unit: str
    higher_is_better: bool = False
    decides: bool = False

    def better(self, first: float, second: float) -> bool:
        """Whether `first` beats `second`."""
        return first > second if self.higher_is_better else first < second


MEASURES = (
    Measure("E2E mean", "e2e_s.mean", "s", decides=True),
    Measure("E2E p99", "e2e_s.p99", "s", decides=True),
    Measure("TTFT mean", "ttft_s.mean", "s", decides=True),
    Measure("TTFT p99", "ttft_s.p99", "s", decides=True),
    Measure("tok/s", "output_tokens_per_s", "", higher_is_better=True),
    Measure("goodput", "goodput", "", higher_is_better=True),
    Measure("preempt.", "preemptions", ""),
)
