"""What a run in Vidur gives back: one row per request, by column, and the same figures as in the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.figures import Slo, figures, times_of
from bidroute.core.queue import FloatArray, IntArray
from bidroute.integrations.vidur.requests import RoutedRequest
from bidroute.integrations.vidur.simulation import Simulation


@dataclass(frozen=True, slots=True)
class VidurRun:
    """Per request in order of arrival, shape [n]: times in seconds (NaN where it never happened), `device` −1: nowhere.

    `refused` bool[n] could run on no replica, or not where they were sent. `assignments` int64[m, 2] are (request,
    device) in order of decision, of policies of bidroute. `devices`: the replicas as the core knows them.
    """

    policy: str
    arrival_s: FloatArray
    first_token_s: FloatArray
    end_s: FloatArray
    device: IntArray
    preemptions: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    refused: np.ndarray
    assignments: IntArray
    devices: list[Device]

    @property
    def finished(self) -> np.ndarray:
        """Which requests ran to their end, bool[n]."""
        return np.isfinite(self.end_s)

    def summary(self, slo: Slo | None = None) -> dict[str, object]:
        """The figures of the run (`core.figures`), where rates count from the first arrival to the last end."""
        done = self.finished
        span_s = float(self.end_s[done].max() - self.arrival_s[0]) if done.any() else math.nan
        times = times_of(self.arrival_s[done], self.first_token_s[done], self.end_s[done], self.output_tokens[done])
        return {
            **figures(times, int(self.output_tokens[done].sum()), span_s, slo or Slo()),
            "preemptions": int(self.preemptions.sum()),
            "refused": int(self.refused.sum()),
            "unfinished": int((~done & ~self.refused).sum()),
        }


def collect(simulation: Simulation) -> VidurRun:
    """What happened to the requests of a simulation that has run."""
    requests = simulation.requests
    refused = simulation.refused | set(simulation.policy.refused if simulation.policy else ())
    assignments = simulation.policy.assignments if simulation.policy else []
    return VidurRun(
        policy=simulation.policy_name,
        arrival_s=_floats(requests, lambda one: one.arrived_at),
        first_token_s=_floats(requests, lambda one: one.first_token_at),
        end_s=_floats(requests, lambda one: one.completed_at if one.completed else math.nan),
        device=_whole(requests, lambda one: one.device),
        preemptions=_whole(requests, lambda one: one.num_restarts),
        prompt_tokens=_whole(requests, lambda one: one.prompt_tokens),
        output_tokens=_whole(requests, lambda one: one.output_tokens),
        refused=np.array([one.id in refused for one in requests]),
        assignments=np.array(assignments, dtype=np.int64).reshape(-1, 2),
        devices=simulation.policy.devices if simulation.policy else [],
    )


def _floats(requests: list[RoutedRequest], read: Callable[[RoutedRequest], float]) -> FloatArray:
    return np.array([read(one) for one in requests], dtype=np.float64)


def _whole(requests: list[RoutedRequest], read: Callable[[RoutedRequest], int]) -> IntArray:
    return np.array([read(one) for one in requests], dtype=np.int64)
