"""A small host for tests: decode-only devices that run one period per step, driven through the controller.

It admits greedily like an engine (first come, first served), and evicts the last in when KV runs out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.lengths import LengthModel
from bidroute.core.requests import Request
from bidroute.lengths.base import LengthPrediction, LengthPredictor
from bidroute.policies import Controller, Policy


class Oracle(LengthPredictor):
    """Takes `predicted_tokens` for the certain truth."""

    def __init__(self) -> None:
        self.model = LengthModel()

    def predict(self, request: Request) -> LengthPrediction:
        return LengthPrediction(0, int(request.predicted_tokens or 0))


class OneClass(LengthPredictor):
    """Knows nothing of a request."""

    def __init__(self) -> None:
        self.model = LengthModel()

    def predict(self, request: Request) -> LengthPrediction:
        return LengthPrediction(0)


class NoisyClasses(LengthPredictor):
    """Sixteen classes by a noisy prediction."""

    def __init__(self, sigma: float = 0.6, seed: int = 0) -> None:
        edges = np.geomspace(8.0, 2048.0, 16)
        self.model = LengthModel(classes=16, prior_median_tokens=edges)
        self._edges, self._sigma, self._random = edges, sigma, np.random.default_rng(seed)

    def predict(self, request: Request) -> LengthPrediction:
        guess = (request.predicted_tokens or 1.0) * math.exp(self._sigma * self._random.standard_normal())
        return LengthPrediction(min(int(np.searchsorted(self._edges, guess)), 15))


class MiniHost:
    """Runs requests to the end; `finish_s` and `start_s` by id, `preemptions` in all, `peak_tokens` per device."""

    def __init__(
        self,
        policy: Policy,
        devices: list[Device],
        predictor: LengthPredictor,
        latency: tuple[float, float, float] = (1.0, 0.0, 0.0),
        recompute_s: float = 0.0,
    ) -> None:
        self.controller = Controller(policy, devices, predictor)
        self.devices = devices
        self.latency = latency
        self.recompute_s = recompute_s
        self.batch: list[list[int]] = [[] for _ in devices]
        self.waiting: list[list[int]] = [[] for _ in devices]
        self.output: dict[int, int] = {}
        self.decoded: dict[int, int] = {}
        self.prompt: dict[int, int] = {}
        self.start_s: dict[int, float] = {}
        self.finish_s: dict[int, float] = {}
        self.preemptions = 0
        self._duration_s = [0.0 for _ in devices]
        self.peak_tokens = [0 for _ in devices]

    def run(self, requests: Sequence[Request], outputs: Sequence[int]) -> None:
        """Serve them all; requests are sorted by arrival."""
        arrivals = [(request.arrival_s, 0, k) for k, request in enumerate(requests)]
        wakes: list[tuple[float, int, int]] = arrivals
        heapq.heapify(wakes)
        self.idle = set(range(len(self.devices)))
        while wakes:
            now_s, kind, k = heapq.heappop(wakes)
            if kind == 0:
                request = requests[k]
                self.output[request.id], self.prompt[request.id] = outputs[k], request.prompt_tokens
                self.decoded[request.id] = 0
                self.controller.enqueue(now_s, request)
                if wakes and wakes[0][:2] == (now_s, 0):
                    continue
                offered = sorted(self.idle)
            else:
                self._end_period(now_s, k)
                self.idle.add(k)
                if wakes and wakes[0][:2] == (now_s, 1):
                    continue
                offered = sorted(self.idle)
            if self.controller.dispatches_on_arrival:
                offered = self.controller.state.fleet.accepting()
            if offered and len(self.controller.state.queue):
                self.controller.update(now_s)
                for assignment in self.controller.decide(now_s, offered).assignments:
                    self.waiting[assignment.device].append(assignment.request_id)
            for device in sorted(self.idle):
                duration_s = self._start_period(now_s, device)
                if duration_s > 0:
                    self.idle.discard(device)
                    heapq.heappush(wakes, (now_s + duration_s, 1, device))

    def _held(self, device: int) -> int:
        block = self.devices[device].block_size
        return sum(self._blocks(i, block) for i in self.batch[device])

    def _blocks(self, i: int, block: int) -> int:
        return -(-(self.prompt[i] + self.decoded[i] + 1) // block) * block

    def _start_period(self, now_s: float, device: int) -> float:
        batch, waiting, spec = self.batch[device], self.waiting[device], self.devices[device]
        recomputed_tokens = 0
        while len(batch) > 1 and self._held(device) > spec.kv_tokens:
            victim = batch.pop()
            waiting.insert(0, victim)
            self.controller.preempted(victim)
            self.preemptions += 1
        while waiting and len(batch) < spec.batch_slots:
            if self._held(device) + self._blocks(waiting[0], spec.block_size) > spec.kv_tokens:
                break
            i = waiting.pop(0)
            if i in self.start_s:
                recomputed_tokens += self.prompt[i] + self.decoded[i]
            batch.append(i)
            self.start_s.setdefault(i, now_s)
            self.controller.started(i, prefilled=True)
        if not batch:
            return 0.0
        self.peak_tokens[device] = max(self.peak_tokens[device], self._held(device))
        a, b, c = self.latency
        duration_s = a + b * len(batch) + c * self._held(device) + self.recompute_s * recomputed_tokens
        self._duration_s[device] = duration_s
        return duration_s

    def _end_period(self, now_s: float, device: int) -> None:
        self.controller.advanced(device, 1, self._duration_s[device])
        for i in list(self.batch[device]):
            self.decoded[i] += 1
            if self.decoded[i] >= self.output[i]:
                self.batch[device].remove(i)
                self.finish_s[i] = now_s
                self.controller.finished(now_s, i, self.output[i])
