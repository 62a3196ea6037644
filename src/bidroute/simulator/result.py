"""What a run gives back: one row per request, by column, and what the run cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.base import Explanation
from bidroute.simulator.recording import Timeline


class Outcome(IntEnum):
    """How a request ended."""

    FINISHED = 0
    REFUSED = 1  # it could never run: on any device, or on the one it was sent to
    UNFINISHED = 2  # the policy never released it


@dataclass(frozen=True, slots=True)
class RunResult:
    """Per request, shape [n]: times in seconds (NaN where it never happened), `device` −1 where it ran nowhere.

    `queued_s` is when it entered the router's queue: at its arrival, in a disaggregated cluster after its prefill.
    `start_s` is when it first joined a decode batch (in aggregated mode, the batch that prefills it too); `status`
    holds Outcome values. `wasted_tokens` were computed, thrown away by preemptions and computed again.
    `decision_us` and `update_us` float64[epochs] are the wall times of the policy's calls; a policy asked blindly
    has one entry, its mean per request. `held` counts, by reason, how often a request was held, over all epochs.
    """

    policy: str
    arrival_s: FloatArray
    queued_s: FloatArray
    start_s: FloatArray
    first_token_s: FloatArray
    end_s: FloatArray
    device: IntArray
    preemptions: IntArray
    status: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    wasted_tokens: int
    decision_us: FloatArray
    update_us: FloatArray
    held: dict[str, int]
    wall_s: float
    cpu_s: float
    timeline: Timeline | None = None
    explanations: list[Explanation] = field(default_factory=list)

    @property
    def held_s(self) -> FloatArray:
        """Seconds from the router's queue into a batch: held by the router, or queued in an engine; NaN if never."""
        return self.start_s - self.queued_s

    @property
    def finished(self) -> int:
        """Requests that ran to their end."""
        return int((self.status == Outcome.FINISHED).sum())
