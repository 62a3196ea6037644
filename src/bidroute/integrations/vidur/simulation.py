"""Vidur's simulator, with requests of ours, replicas that are watched, and events in the order Vidur means them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from vidur.entities import Replica as VidurReplica
from vidur.events import BaseEvent, RequestArrivalEvent
from vidur.simulator import Simulator

from bidroute.errors import ConfigError
from bidroute.integrations.vidur.ledger import NS_PER_S, nanoseconds
from bidroute.integrations.vidur.options import BidrouteSimulationConfig
from bidroute.integrations.vidur.replicas import fit_replicas
from bidroute.integrations.vidur.requests import RoutedRequest
from bidroute.integrations.vidur.scheduler import PolicyScheduler
from bidroute.lengths import predicted_tokens
from bidroute.traces.workload import Workload


class Simulation(Simulator):
    """One run, of the requests that the configuration asks for, or of a `workload`.

    `requests` are all of them in order of arrival, `refused` the ids of those that fit no replica; `policy` is the
    scheduler if it is one of ours.

    At one instant Vidur handles events in order of creation; here what ends comes before what is scheduled, as the
    numbers of its event types say, so that a policy sees all that happened at an instant.
    """

    def __init__(self, config: BidrouteSimulationConfig, workload: Workload | None = None) -> None:
        self._workload = workload
        VidurReplica._id = -1  # its own round robin expects replicas to be numbered from 0
        super().__init__(config)

    def _init_event_queue(self) -> None:
        self.policy = self._scheduler if isinstance(self._scheduler, PolicyScheduler) else None
        options = self._config.bidroute
        self.replicas = fit_replicas(self._scheduler, self._config, options)
        self.requests = routed(self._sizes(), decode_only=options.decode_only)
        self.refused = self._refused()
        coming = [request for request in self.requests if request.id not in self.refused]
        if self.policy is not None:
            output_tokens = np.array([request.output_tokens for request in self.requests], dtype=np.int64)
            hints = predicted_tokens(options.lengths, output_tokens, self._config.seed)
            self.policy.begin(coming, self.replicas, hints)
        for request in coming:
            self._add_event(RequestArrivalEvent(request.arrived_at, request))

    @property
    def policy_name(self) -> str:
        """What the global scheduler is called among Vidur's."""
        return str(self._config.cluster_config.global_scheduler_config.get_type())

    def _sizes(self) -> list[tuple[float, int, int]]:
        """Arrival, prompt tokens and output tokens of every request."""
        if self._workload is None:
            made = self._request_generator.generate()
            return [(float(one.arrived_at), int(one.size[0]), int(one.size[1])) for one in made]
        columns = self._workload.arrival_s, self._workload.prompt_tokens, self._workload.output_tokens
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def _refused(self) -> set[int]:
        """Who could run on no replica; under Vidur's own schedulers, which do not look, who not on every one."""
        enough = any if self.policy is not None else all
        return {one.id for one in self.requests if not enough(replica.can_complete(one) for replica in self.replicas)}

    def _set_time(self, time: float) -> None:
        super()._set_time(time)
        if self.policy is not None:
            self.policy.now_s = nanoseconds(time) / NS_PER_S

    def _add_event(self, event: BaseEvent) -> None:
        heapq.heappush(self._event_queue, ((event.time, event._event_type, event.id), event))

    def _add_events(self, events: list[BaseEvent]) -> None:
        super()._add_events(events)
        if self.policy is not None:
            super()._add_events(self.policy.take_events(self._time))


def routed(sizes: Sequence[tuple[float, int, int]], *, decode_only: bool) -> list[RoutedRequest]:
    """Requests of these arrivals, prompts and outputs. Raises ConfigError for one without tokens."""
    made = []
    for place, (arrived_at, prompt_tokens, output_tokens) in enumerate(sorted(sizes, key=lambda size: size[0])):
        if min(prompt_tokens, output_tokens) < 1:
            raise ConfigError(f"request {place}: {prompt_tokens} + {output_tokens} tokens; expected 1 or more of each")
        made.append(RoutedRequest(place, arrived_at, prompt_tokens, output_tokens, decode_only))
    return made
