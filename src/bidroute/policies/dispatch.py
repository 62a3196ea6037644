"""Policies that dispatch on arrival: every request goes to a device at once, and engines keep queues of their own."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies.base import Assignment, Decision, Explanation, Hold, Policy, Timing
from bidroute.policies.dispatch_kernels import remaining_work
from bidroute.policies.expected_lengths import ResidualLengths
from bidroute.policies.registry import PolicySettings, register


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a dispatch policy sees of a request: its prompt, and its output length as class or exactly (else 0)."""

    prompt_tokens: int
    length_class: int
    exact_tokens: int


class DispatchPolicy(Policy):
    """Score the devices for each arrival and take the lowest score; ties go to the earlier device.

    Only devices whose KV can ever hold the request compete, where there is one.
    """

    timing = Timing.ON_ARRIVAL

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        """Assign every waiting request, in order of entry."""
        queue, offered = state.queue, np.asarray(devices, dtype=np.int64)
        if len(queue) == 0 or len(offered) == 0:
            return Decision()
        self._begin(state, offered)
        assignments = []
        for row in np.argsort(queue.sequence) if len(queue) > 1 else (0,):
            arrival = _arrival(state, row)
            choice = self._choose(arrival, _candidates(state, offered, arrival))
            self._assigned(choice, arrival)
            assignments.append(Assignment(int(queue.ids[row]), int(offered[choice])))
        return Decision(assignments)

    def explain(
        self, now_s: float, state: RoutingState, devices: Sequence[int], request_ids: Sequence[int]
    ) -> list[Explanation]:
        """For each request one entry per device that competes: the score as a price, the chosen device first.

        Each request is judged as if it were the next one.
        """
        offered, explanations = np.asarray(devices, dtype=np.int64), []
        twin = copy.deepcopy(self)  # a random choice must not use up this policy's own random numbers
        for request_id in request_ids if len(offered) else ():
            row = state.queue.position(request_id)
            arrival = _arrival(state, row)
            twin._begin(state, offered)
            candidates = _candidates(state, offered, arrival)
            choice, scores = twin._choose(arrival, candidates), twin._scores(arrival)
            others = [int(d) for d in candidates[np.argsort(scores[candidates], kind="stable")] if d != choice]
            for position in (choice, *others):
                score = float(scores[position])
                explanations.append(
                    Explanation(
                        request_id=request_id,
                        device=int(offered[position]),
                        now_s=now_s,
                        wait_s=now_s - float(state.queue.arrival_s[row]),
                        reward={},
                        price={"score": score},
                        value=0.0 - score,
                        rank=int(np.count_nonzero(state.queue.sequence < state.queue.sequence[row])),
                        waiting=len(state.queue),
                        held_by=None if position == choice else Hold.ORDER,
                        instead=[],
                    )
                )
        return explanations

    @abstractmethod
    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        """Read the loads of these devices; positions below are positions in this array."""

    @abstractmethod
    def _scores(self, arrival: Arrival) -> FloatArray:
        """The score of each device for this arrival, float64[D]; the lowest wins."""

    def _choose(self, arrival: Arrival, candidates: IntArray) -> int:
        """The position of the device that gets this arrival, one of `candidates` (rising)."""
        scores = self._scores(arrival)
        return int(candidates[np.argmin(scores[candidates])])

    def _assigned(self, position: int, arrival: Arrival) -> None:
        """Count this arrival in the loads, for the next ones of the same decision."""


def _arrival(state: RoutingState, row: int) -> Arrival:
    queue = state.queue
    return Arrival(int(queue.prompt_tokens[row]), int(queue.length_class[row]), int(queue.exact_tokens[row]))


def _candidates(state: RoutingState, devices: IntArray, arrival: Arrival) -> IntArray:
    """Positions of the devices that can ever hold the request; all, where none can."""
    fits = np.flatnonzero(state.fleet.usable_kv_tokens[devices] >= arrival.prompt_tokens + max(arrival.exact_tokens, 1))
    return fits if len(fits) else np.arange(len(devices))


def _alike(state: RoutingState, devices: IntArray) -> bool:
    capacities = state.fleet.usable_kv_tokens[devices]
    return bool(len(devices) > 0 and np.all(capacities == capacities[0]))


@register("round_robin")
class RoundRobin(DispatchPolicy):
    """The devices in turn, whatever they hold. The score is how many turns away a device is."""

    name = "round_robin"

    def __init__(self, settings: PolicySettings) -> None:
        self._next = 0

    def choose_blindly(self, count: int, state: RoutingState) -> IntArray | None:
        """In turn; None where devices differ in KV, because then it must look at the prompts."""
        devices = np.asarray(state.fleet.accepting(), dtype=np.int64)
        if not _alike(state, devices):
            return None
        first = int(np.searchsorted(devices, self._next))
        chosen: IntArray = devices[(first + np.arange(count)) % len(devices)]
        if count > 0:
            self._next = int(chosen[-1]) + 1
        return chosen

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        self._devices, self._wrap = devices, len(state.fleet)

    def _scores(self, arrival: Arrival) -> FloatArray:
        return np.asarray((self._devices - self._next) % self._wrap, dtype=np.float64)

    def _assigned(self, position: int, arrival: Arrival) -> None:
        self._next = int(self._devices[position]) + 1


@register("random")
class Random(DispatchPolicy):
    """A device at random, uniformly. All scores are 0."""

    name = "random"

    def __init__(self, settings: PolicySettings) -> None:
        self._generator = np.random.default_rng(settings.seed)

    def choose_blindly(self, count: int, state: RoutingState) -> IntArray | None:
        """At random; None where devices differ in KV, because then it must look at the prompts."""
        devices = np.asarray(state.fleet.accepting(), dtype=np.int64)
        if not _alike(state, devices):
            return None
        chosen: IntArray = devices[(self._generator.random(count) * len(devices)).astype(np.int64)]
        return chosen

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        self._devices = devices

    def _scores(self, arrival: Arrival) -> FloatArray:
        return np.zeros(len(self._devices))

    def _choose(self, arrival: Arrival, candidates: IntArray) -> int:
        return int(candidates[int(self._generator.random() * len(candidates))])


@register("join_shortest_queue")
class JoinShortestQueue(DispatchPolicy):
    """The device with the fewest open leases. That is the score."""

    name = "join_shortest_queue"

    def __init__(self, settings: PolicySettings) -> None:
        pass

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        self._open: FloatArray = state.fleet.open_leases[devices].astype(np.float64)

    def _scores(self, arrival: Arrival) -> FloatArray:
        return self._open

    def _assigned(self, position: int, arrival: Arrival) -> None:
        self._open[position] += 1.0


@register("weighted_least_connections")
class WeightedLeastConnections(JoinShortestQueue):
    """The device with the fewest open leases for its speed. The score is (open leases + 1) ÷ speed."""

    name = "weighted_least_connections"

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        super()._begin(state, devices)
        self._speed = state.fleet.speed[devices]

    def _scores(self, arrival: Arrival) -> FloatArray:
        return np.asarray((self._open + 1.0) / self._speed)


@register("power_of_d")
class PowerOfD(JoinShortestQueue):
    """The one with fewest open leases among d devices drawn at random (option `d`, 2). The score is open leases."""

    name = "power_of_d"

    def __init__(self, settings: PolicySettings) -> None:
        self._d = settings.whole("d", 2)
        if self._d < 1:
            raise ConfigError(f"policy power_of_d: d={self._d}; expected 1 or more")
        self._generator = np.random.default_rng(settings.seed)

    def _choose(self, arrival: Arrival, candidates: IntArray) -> int:
        pool = candidates.tolist()
        drawn = [pool.pop(int(self._generator.random() * len(pool))) for _ in range(min(self._d, len(pool)))]
        return int(min(drawn, key=self._open.__getitem__))


@register("least_kv")
class LeastKv(DispatchPolicy):
    """The device with the least of its KV spoken for: by its batch, its engine's queue and this prompt (a fraction)."""

    name = "least_kv"

    def __init__(self, settings: PolicySettings) -> None:
        pass

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        fleet = state.fleet
        self._kv_tokens = fleet.kv_tokens[devices]
        self._held = (fleet.kv_tokens_used[devices] + fleet.kv_tokens_pending[devices]).astype(np.float64)

    def _scores(self, arrival: Arrival) -> FloatArray:
        return np.asarray((self._held + arrival.prompt_tokens + 1) / self._kv_tokens)

    def _assigned(self, position: int, arrival: Arrival) -> None:
        self._held[position] += arrival.prompt_tokens + 1


@register("least_predicted_work")
class LeastPredictedWork(DispatchPolicy):
    """The device that would be the first to finish all its decode work, this request's with it.

    The score is the sum of the expected remaining output tokens of its open leases and of the arrival ÷ speed.
    """

    name = "least_predicted_work"

    def __init__(self, settings: PolicySettings) -> None:
        self._lengths = ResidualLengths()

    def update(self, now_s: float, state: RoutingState) -> None:
        """Follow the length model, so that `decide` need not."""
        self._lengths.refresh(state.lengths)

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        self._lengths.refresh(state.lengths)
        pool = state.fleet.pool
        self._speed, self._work = state.fleet.speed[devices], np.empty(len(devices))
        remaining_work(pool.columns, pool.offset, pool.count, devices, self._lengths.mean_residual, self._work)

    def _own(self, arrival: Arrival) -> float:
        return float(arrival.exact_tokens or self._lengths.mean_tokens[arrival.length_class])

    def _scores(self, arrival: Arrival) -> FloatArray:
        return np.asarray((self._work + self._own(arrival)) / self._speed)

    def _assigned(self, position: int, arrival: Arrival) -> None:
        self._work[position] += self._own(arrival)


@register("lmetric")
class LMetric(DispatchPolicy):
    """New prefill work times batch size: (prefill tokens outstanding there + this prompt) × (open leases + 1)."""

    name = "lmetric"

    def __init__(self, settings: PolicySettings) -> None:
        pass

    def _begin(self, state: RoutingState, devices: IntArray) -> None:
        self._prefill_tokens = state.fleet.prefill_tokens[devices].astype(np.float64)
        self._open = state.fleet.open_leases[devices].astype(np.float64)

    def _scores(self, arrival: Arrival) -> FloatArray:
        return np.asarray((self._prefill_tokens + arrival.prompt_tokens) * (self._open + 1.0))

    def _assigned(self, position: int, arrival: Arrival) -> None:
        self._prefill_tokens[position] += arrival.prompt_tokens
        self._open[position] += 1.0
