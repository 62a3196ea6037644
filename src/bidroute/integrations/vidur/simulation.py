"""Vidur's simulator, with requests of ours, replicas that are watched, and events in the order Vidur means them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from vidur.entities import Replica as VidurReplica
from vidur.entities import Request
from vidur.events import BaseEvent, RequestArrivalEvent
from vidur.simulator import Simulator

from bidroute.errors import ConfigError
from bidroute.integrations.vidur.ledger import NS_PER_S, nanoseconds
from bidroute.integrations.vidur.options import BidrouteSimulationConfig
from bidroute.integrations.vidur.replicas import fit_replicas
from bidroute.integrations.vidur.requests import RoutedRequest
from bidroute.integrations.vidur.scheduler import PolicyScheduler
from bidroute.lengths import predicted_tokens


class Simulation(Simulator):
    """One run. `requests` are all of them in order of arrival, `refused` the ids of those that fit no replica.

    At one instant Vidur handles events in order of creation; here what ends comes before what is scheduled, as the
    numbers of its event types say, so that a policy sees all that happened at an instant.
    """

    def __init__(self, config: BidrouteSimulationConfig) -> None:
        VidurReplica._id = -1  # its own round robin expects replicas to be numbered from 0
        super().__init__(config)

    def _init_event_queue(self) -> None:
        self._policy = self._scheduler if isinstance(self._scheduler, PolicyScheduler) else None
        options = self._config.bidroute
        self.replicas = fit_replicas(self._scheduler, self._config, options)
        self.requests = routed(self._request_generator.generate(), decode_only=options.decode_only)
        self.refused = self._refused()
        coming = [request for request in self.requests if request.id not in self.refused]
        if self._policy is not None:
            output_tokens = np.array([request.output_tokens for request in self.requests], dtype=np.int64)
            hints = predicted_tokens(options.lengths, output_tokens, self._config.seed)
            self._policy.begin(coming, self.replicas, hints)
        for request in coming:
            self._add_event(RequestArrivalEvent(request.arrived_at, request))

    def _refused(self) -> set[int]:
        """Who could run on no replica; under Vidur's own schedulers, which do not look, who not on every one."""
        enough = any if self._policy is not None else all
        return {one.id for one in self.requests if not enough(replica.can_complete(one) for replica in self.replicas)}

    def _set_time(self, time: float) -> None:
        super()._set_time(time)
        if self._policy is not None:
            self._policy.now_s = nanoseconds(time) / NS_PER_S

    def _add_event(self, event: BaseEvent) -> None:
        heapq.heappush(self._event_queue, ((event.time, event._event_type, event.id), event))

    def _add_events(self, events: list[BaseEvent]) -> None:
        super()._add_events(events)
        if self._policy is not None:
            super()._add_events(self._policy.take_events(self._time))


def routed(requests: Sequence[Request], *, decode_only: bool) -> list[RoutedRequest]:
    """The requests of a generator as ours, in order of arrival. Raises ConfigError for one without tokens."""
    ordered = sorted(requests, key=lambda request: request.arrived_at)
    made = []
    for place, request in enumerate(ordered):
        prompt_tokens, output_tokens = (int(tokens) for tokens in request.size)
        if min(prompt_tokens, output_tokens) < 1:
            raise ConfigError(f"request {place}: {prompt_tokens} + {output_tokens} tokens; expected 1 or more of each")
        made.append(RoutedRequest(place, float(request.arrived_at), prompt_tokens, output_tokens, decode_only))
    return made
