"""What every host loop needs: the controller beside the engines, timed decisions, refusals, samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.core.requests import Request
from bidroute.errors import ConfigError
from bidroute.lengths.base import LengthPredictor
from bidroute.policies.base import Assignment, Policy
from bidroute.policies.controller import Controller
from bidroute.simulator import layout
from bidroute.simulator.engines import NS_PER_S, Engines, block_size_of
from bidroute.simulator.fleet_changes import in_order, there_at_first
from bidroute.simulator.recording import Recorder, RecordOptions
from bidroute.simulator.replay import Replay
from bidroute.simulator.result import Outcome
from bidroute.simulator.scenario import Scenario

REFUSED = int(Outcome.REFUSED)
REFRESH_PERIODS = 8.0  # without a decision, after which the policy's estimates are refreshed all the same


class Host:
    """One run in progress. The loops in `dispatch`, `central` and `disaggregated` drive it.

    `device` int64[n] is where each request was sent (−1: nowhere), `status` int64[n] its Outcome so far, `queued_ns`
    when it entered the router's queue.
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        predictor: LengthPredictor,
        predicted_tokens: FloatArray | None,
        record: RecordOptions,
    ) -> None:
        n = len(scenario.workload)
        if predicted_tokens is not None and len(predicted_tokens) != n:
            raise ConfigError(f"{len(predicted_tokens)} predicted_tokens for {n} requests; expected one each")
        devices = [dataclasses.replace(d, block_size=block_size_of(scenario, d)) for d in scenario.devices]
        self.scenario = scenario
        self._there = list(range(there_at_first(devices, scenario.changes)))
        self._absent = devices[len(self._there) :]
        self._changes = in_order(scenario.changes)
        self.controller = Controller(policy, devices[: len(self._there)], predictor)
        self.engines = Engines(scenario)
        for device in range(len(self._there), len(devices)):
            self.engines.shut(device)
        self.replay = Replay(self.controller, self.engines, starts_prefilled=scenario.mode != "aggregated")
        self.held: dict[str, int] = {}
        self.recorder = Recorder(record, policy, self.engines, self.held)
        self.can_complete = self.engines.can_complete()
        self.status = np.where(self.can_complete.any(axis=1), Outcome.UNFINISHED, Outcome.REFUSED).astype(np.int64)
        self.device = np.full(n, -1, dtype=np.int64)
        self.decision_us: list[float] = []
        self.update_us: list[float] = []
        self._refresh_ns = layout.FOREVER
        self._refresh_gap_ns = 0
        self._has_estimates = type(policy).update is not Policy.update
        self.arrival_ns: list[int] = self.engines.requests[:, layout.R_READY].tolist()
        self.queued_ns = np.full(n, layout.NEVER, dtype=np.int64)
        self._prompts: list[int] = scenario.workload.prompt_tokens.tolist()
        self._predictions = [None] * n if predicted_tokens is None else predicted_tokens.tolist()

    @property
    def waiting(self) -> int:
        """Requests in the central queue."""
        return len(self.controller.state.queue)

    def refused(self, request: int) -> bool:
        """Whether this request fits no device; of a fleet that changes, none that is there now."""
        if self.scenario.changes and not self._fits_now(request):
            self.status[request] = REFUSED
        return bool(self.status[request] == REFUSED)

    def _fits_now(self, request: int) -> bool:
        return bool(self.can_complete[request, self._there].any())

    def next_change_ns(self) -> int:
        """When a device joins or is lost next; FOREVER if none does."""
        return round(self._changes[0].time_s * NS_PER_S) if self._changes else layout.FOREVER

    def change_fleet(self, now_ns: int) -> None:
        """Let the devices join or be lost that do so at this moment; what was on one enters the queue again."""
        while self.next_change_ns() == now_ns:
            change = self._changes.pop(0)
            if change.joins:
                self._join(change.device, now_ns)
            else:
                self._lose(change.device, now_ns)

    def _join(self, device: int, now_ns: int) -> None:
        joining = self._absent.pop(0)
        self.engines.join(device, joining.batch_slots, now_ns)
        self.controller.device_joined(joining)
        self._there.append(device)

    def _lose(self, device: int, now_ns: int) -> None:
        self._there.remove(device)
        self.controller.device_left(device)
        for request in self.engines.lose(device, now_ns):
            self.device[request] = -1
            if not self.refused(request):
                self.enqueue(request, now_ns)
        for request in self.controller.state.queue.ids.tolist():
            if self.refused(request):
                self.controller.cancelled(request)

    def enqueue(self, request: int, now_ns: int) -> None:
        """Let a request enter the router's queue."""
        self.queued_ns[request] = now_ns
        self.controller.enqueue(
            now_ns / NS_PER_S,
            Request(
                id=request,
                arrival_s=self.arrival_ns[request] / NS_PER_S,
                prompt_tokens=self._prompts[request],
                predicted_tokens=self._predictions[request],
                ttft_slo_s=self.scenario.ttft_slo_s,
                e2e_slo_s=self.scenario.e2e_slo_s,
            ),
        )

    def decide(self, now_ns: int, devices: Sequence[int]) -> list[Assignment]:
        """One decision epoch: refresh, explain where asked to, decide."""
        now_s = now_ns / NS_PER_S
        self._update(now_s)
        if self._has_estimates:
            self._refresh_gap_ns = round(REFRESH_PERIODS * self.controller.state.fleet.pace_s()[1] * NS_PER_S)
            self._refresh_ns = now_ns + self._refresh_gap_ns
        self._explain(now_s, devices)
        before = perf_counter()
        decision = self.controller.decide(now_s, devices)
        self.decision_us.append((perf_counter() - before) * 1e6)
        for reason, count in decision.held.items():
            self.held[str(reason)] = self.held.get(str(reason), 0) + count
        return decision.assignments

    def _update(self, now_s: float) -> None:
        before = perf_counter()
        self.controller.update(now_s)
        self.update_us.append((perf_counter() - before) * 1e6)

    def _explain(self, now_s: float, devices: Sequence[int]) -> None:
        state = self.controller.state
        ids = [request for request in self.recorder.options.explain_request_ids if request in state.queue]
        if ids:
            self.recorder.explanations += self.controller.policy.explain(now_s, state, devices, ids)

    def send(self, assignment: Assignment, now_ns: int) -> None:
        """Hand a request to its device's engine, which refuses what it could never complete."""
        request, device = assignment.request_id, assignment.device
        self.device[request] = device
        if self.can_complete[request, device]:
            self.engines.push(device, request, now_ns)
        else:
            self.status[request] = Outcome.REFUSED
            self.controller.cancelled(request)

    def pass_time(self, until_ns: int) -> None:
        """Let time pass until the next event, taking the samples due before it; FOREVER: to the end.

        Where no decision refreshes the policy's estimates for a while, that is done here, then ever more rarely:
        prices fall when nobody waits any more, whether or not a recording looks at them.
        """
        engines = self.engines
        while (due := min(self.recorder.next_sample_ns(), self._refresh_ns)) < until_ns:
            engines.advance(due)
            at_the_end = until_ns == layout.FOREVER and not engines.busy
            if due == self._refresh_ns or at_the_end:
                self._refresh(due, layout.FOREVER if at_the_end else 2 * self._refresh_gap_ns)
            if due == self.recorder.next_sample_ns():
                self.recorder.sample(due, self.waiting)
                if at_the_end:
                    break
        engines.advance(until_ns)
        self.replay.run()

    def _refresh(self, now_ns: int, gap_ns: int) -> None:
        """Refresh the policy's estimates between decisions, and again after `gap_ns` without one."""
        if not self._has_estimates:
            return
        self.replay.run()
        self._update(now_ns / NS_PER_S)
        self._refresh_gap_ns, self._refresh_ns = gap_ns, min(now_ns + gap_ns, layout.FOREVER)


def mean_us(seconds: float, count: int) -> FloatArray:
    """One entry: microseconds per call."""
    return np.array([seconds * 1e6 / count if count else math.nan])
