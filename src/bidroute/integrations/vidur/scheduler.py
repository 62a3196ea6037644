"""A policy of ours as a global scheduler of Vidur."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vidur.config import SimulationConfig
from vidur.events import BaseEvent
from vidur.scheduler.global_scheduler.base_global_scheduler import BaseGlobalScheduler
from vidur.types import ReplicaId

from bidroute.core.queue import FloatArray
from bidroute.core.requests import Request
from bidroute.errors import ConfigError, NeverFitsError
from bidroute.integrations.vidur.events import Refresh, release
from bidroute.integrations.vidur.ledger import NS_PER_S, Ledger, nanoseconds
from bidroute.integrations.vidur.options import Bidroute
from bidroute.integrations.vidur.replicas import Replica, devices_of
from bidroute.integrations.vidur.requests import RoutedRequest
from bidroute.lengths import build_predictor
from bidroute.policies import Policy, PolicySettings, build_policy
from bidroute.policies.controller import Controller

REFRESH_PERIODS = 8.0  # without a decision, after which the policy's estimates are refreshed all the same


class PolicyScheduler(BaseGlobalScheduler):
    """Asks the policy at arrivals and, where it holds requests back, whenever a replica could take one.

    The simulation calls `begin` once, sets `now_s` before every event, and `take_events` after it.
    `assignments` are (request, device) in order; `refused` what could never run where it was sent.
    """

    def __init__(self, config: SimulationConfig, replicas: dict[ReplicaId, Any]) -> None:
        super().__init__(config, replicas)
        engine = str(config.cluster_config.replica_scheduler_config.get_type())
        stages = config.cluster_config.replica_config.num_pipeline_stages
        if engine != "sarathi" or stages != 1:
            raise ConfigError(
                f"replica scheduler {engine} with {stages} pipeline stages; policies of bidroute expect sarathi with 1"
            )
        options: Bidroute = config.bidroute
        name: str = config.cluster_config.global_scheduler_config.policy
        policy_text = f"{name}:{options.policy_options}" if options.policy_options else name
        self._policy = build_policy(policy_text, PolicySettings(seed=config.seed, objective=options.objective))
        self._predictor = build_predictor(options.lengths)
        self._request_queue: list[RoutedRequest] = []
        self.now_s = 0.0
        self._events: list[BaseEvent] = []
        self.assignments: list[tuple[int, int]] = []
        self.refused: list[int] = []
        self._options = options
        self._asked_at: float | None = None
        self._refresh_due = self._refresh_gap = 0
        self._has_estimates = type(self._policy).update is not Policy.update

    def begin(self, requests: Sequence[RoutedRequest], replicas: Sequence[Replica], hints: FloatArray | None) -> None:
        """All requests that will arrive, by id, and the replicas as they were fitted."""
        self._requests = {request.id: request for request in requests}
        self._hints = hints
        self._fleet = replicas
        self.devices = devices_of(replicas)
        self.controller = Controller(self._policy, self.devices, self._predictor)
        self._ledger = Ledger(self.controller, replicas)
        self._to_come = len(requests)

    # --- what Vidur calls ---------------------------------------------------------------------------------------

    def schedule(self) -> list[tuple[ReplicaId, RoutedRequest]]:
        """Requests have arrived, or a replica could take one: who goes where now."""
        arrivals, self._request_queue = sorted(self._request_queue, key=lambda one: one.id), []
        if not arrivals and not self._ledger.chance:
            return []
        self._ledger.chance, self._asked_at = False, None
        self._ledger.tell_all()
        if not self.controller.dispatches_on_arrival:
            for request in arrivals:
                self._enter(request)
            return self._decide(self._ledger.ready())
        return [sent for request in arrivals for sent in self._dispatch(request)]

    def is_empty(self) -> bool:
        """Whether nobody waits, here or on a replica."""
        return super().is_empty() and not self._waiting

    # --- what the simulation calls ------------------------------------------------------------------------------

    def take_events(self, time_s: float) -> list[BaseEvent]:
        """What this scheduler wants to happen, after the event at this time."""
        events, self._events = self._events, []
        if not self._waiting or self.controller.dispatches_on_arrival:
            self._ledger.chance = False
        elif self._ledger.chance and self._asked_at != time_s:
            self._asked_at = time_s
            events.append(release(time_s))
        return events

    def refresh(self, due: int) -> None:
        """Bring the policy's estimates up to date, where no decision has for a while, and then ever more rarely."""
        if due != self._refresh_due or not self._open:
            return
        self._ledger.tell_all()
        self.controller.update(due / NS_PER_S)
        self._refresh_at(due, 2 * self._refresh_gap)

    # --- parts --------------------------------------------------------------------------------------------------

    @property
    def _waiting(self) -> int:
        return len(self.controller.state.queue)

    @property
    def _open(self) -> bool:
        return self._to_come > 0 or self._waiting > 0 or bool(self.controller.state.fleet.open_leases.any())

    def _dispatch(self, request: RoutedRequest) -> list[tuple[ReplicaId, RoutedRequest]]:
        self._enter(request)
        return self._decide(self.controller.state.fleet.accepting())

    def _enter(self, request: RoutedRequest) -> None:
        self._to_come -= 1
        try:
            self.controller.enqueue(
                self.now_s,
                Request(
                    id=request.id,
                    arrival_s=nanoseconds(request.arrived_at) / NS_PER_S,
                    prompt_tokens=request.prompt_tokens,
                    predicted_tokens=None if self._hints is None else float(self._hints[request.id]),
                    ttft_slo_s=self._options.ttft_slo_s,
                    e2e_slo_s=self._options.e2e_slo_s,
                ),
            )
        except NeverFitsError:
            self.refused.append(request.id)

    def _decide(self, devices: list[int]) -> list[tuple[ReplicaId, RoutedRequest]]:
        if not self._waiting or not devices:
            return []
        self.controller.update(self.now_s)
        if self._has_estimates:
            gap_s = REFRESH_PERIODS * self.controller.state.fleet.pace_s()[1]
            self._refresh_at(nanoseconds(self.now_s), nanoseconds(gap_s))
        sent = []
        for assignment in self.controller.decide(self.now_s, devices).assignments:
            request, replica = self._requests[assignment.request_id], self._fleet[assignment.device]
            if replica.can_complete(request):
                self.assignments.append((request.id, replica.device))
                sent.append((replica.id, request))
            else:
                self.controller.cancelled(request.id)
                self.refused.append(request.id)
        return sent

    def _refresh_at(self, now: int, gap: int) -> None:
        self._refresh_due, self._refresh_gap = now + gap, gap
        self._events.append(Refresh(self._refresh_due))
