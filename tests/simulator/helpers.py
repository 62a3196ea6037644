"""Tiny policies and one-class predictor for the simulator's own tests, and loaders of shared data."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.lengths import LengthModel
from bidroute.core.queue import IntArray
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.lengths.base import LengthPrediction, LengthPredictor
from bidroute.policies.base import Assignment, Decision, Hold, Policy, Timing
from bidroute.traces.workload import Workload

SHARED = Path(__file__).parents[2].parent / "shared"
NO_SHARED = f"needs {SHARED}, which is absent"


class OneClass(LengthPredictor):
    """No predictor: one class."""

    def __init__(self) -> None:
        self.model = LengthModel(1, 4096)

    def predict(self, request: Request) -> LengthPrediction:
        return LengthPrediction(0)


class Cycle(Policy):
    """Round robin, one look per arrival."""

    name = "cycle"
    timing = Timing.ON_ARRIVAL

    def __init__(self) -> None:
        self.turn = 0

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        chosen = []
        for request_id in state.queue.ids[np.argsort(state.queue.sequence)]:
            chosen.append(Assignment(int(request_id), devices[self.turn % len(devices)]))
            self.turn += 1
        return Decision(chosen)


class BlindCycle(Cycle):
    """The same round robin, on the fast path."""

    name = "blind_cycle"

    def choose_blindly(self, count: int, state: RoutingState) -> IntArray:
        return (self.turn + np.arange(count)) % len(state.fleet)


class ShortestQueue(Policy):
    """Least outstanding requests, lowest index first."""

    name = "shortest_queue"
    timing = Timing.ON_ARRIVAL

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        device = min(devices, key=lambda d: (int(state.fleet.open_leases[d]), d))
        return Decision([Assignment(int(request_id), device) for request_id in state.queue.ids])


class Fifo(Policy):
    """Central first come, first served; the emptiest offered device takes the head."""

    name = "fifo"
    timing = Timing.WHEN_STARTABLE
    shortest_first = False

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        fleet, queue = state.fleet, state.queue
        slots = {d: int(fleet.batch_slots[d] - fleet.open_leases[d]) for d in devices}
        free = {d: int(fleet.kv_tokens[d] - fleet.kv_tokens_used[d]) for d in devices}
        keys = queue.exact_tokens if self.shortest_first else queue.sequence
        chosen = []
        for row in np.lexsort((queue.sequence, keys)):
            needed = int(queue.prompt_tokens[row]) + 1
            open_devices = [d for d in devices if slots[d] > 0 and free[d] >= needed]
            if not open_devices:
                break
            device = max(open_devices, key=lambda d: (slots[d], free[d], -d))
            slots[device] -= 1
            free[device] -= needed
            chosen.append(Assignment(int(queue.ids[row]), device))
        return Decision(chosen, {Hold.ORDER: len(queue) - len(chosen)})


class ShortestFirst(Fifo):
    """Central, shortest first by exact length."""

    name = "shortest_first"
    shortest_first = True


class Oracle(OneClass):
    """Exact lengths from the prediction that came with the request."""

    def predict(self, request: Request) -> LengthPrediction:
        assert request.predicted_tokens is not None
        return LengthPrediction(0, int(request.predicted_tokens))


def workload(rows: list[tuple[float, int, int]], name: str = "rows") -> Workload:
    """Rows of (arrival_s, prompt tokens, output tokens)."""
    return Workload(
        name,
        np.array([row[0] for row in rows], dtype=np.float64),
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.int64),
    )


def devices(count: int, slots: int, kv_tokens: int) -> tuple[Device, ...]:
    return tuple(Device(f"d{index}", slots, kv_tokens) for index in range(count))


def azure(requests: int | None = None) -> Workload:
    """The Azure conversation trace of the shared folder, from its first arrival."""
    with (SHARED / "data/traces/azure_conv_2023_first_half.csv").open() as file:
        rows = list(csv.DictReader(file))[:requests]
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return workload(
        [
            ((time - times[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for time, row in zip(times, rows, strict=True)
        ],
        "azure",
    )
