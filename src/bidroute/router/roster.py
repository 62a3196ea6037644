"""The workers in service, and the controller's fleet of devices that mirrors them."""

from __future__ import annotations

import math
from collections.abc import Callable

from bidroute.core.devices import Device
from bidroute.core.fleet import Lease
from bidroute.errors import ConfigError
from bidroute.lengths.base import LengthPredictor
from bidroute.policies import Controller, Policy
from bidroute.pricing.prices import PriceSnapshot
from bidroute.router.parts import Parts
from bidroute.router.workers import Worker

_UNKNOWN_DRAIN_S = 5.0  # what to say while there was no worker yet
_LEAST_DRAIN_S, _MOST_DRAIN_S = 1.0, 60.0


class Roster:
    """Workers by name and by device. `started` is the controller, which there is as soon as there was a worker."""

    def __init__(self, make_policy: Callable[[], Policy], predictor: LengthPredictor) -> None:
        self.policy = make_policy()
        self._make_policy = make_policy
        self.predictor = predictor
        self.workers: dict[str, Worker] = {}
        self.by_device: dict[int, Worker] = {}
        self.started: Controller | None = None
        self._parts: Parts | None = None
        self._means_version = -1
        self._means: list[float] = []

    @property
    def controller(self) -> Controller:
        """The controller. Raises ConfigError where there is none yet."""
        if self.started is None:
            raise ConfigError("the fleet has no workers yet; add one")
        return self.started

    def of(self, model: str) -> Controller:
        """The controller that requests for this model wait at. Raises ConfigError where there is none yet."""
        return self.controller if self._parts is None else self._parts.of(model)

    def controllers(self) -> list[Controller]:
        """All controllers: of the whole fleet, and of the parts that serve other models than the rest."""
        return [] if self._parts is None else self._parts.controllers()

    def policies(self) -> list[Policy]:
        """The policy of each controller; there is one at least."""
        return [controller.policy for controller in self.controllers()] or [self.policy]

    def prices_on(self, worker: Worker) -> PriceSnapshot | None:
        """The prices of the policy that this worker's requests are decided by, where it has any.

        The dearest of several: there are, where it serves one model that others serve as well and one that they do not.
        """
        members = [one for one in self.controllers() if worker.device in one.state.fleet.members]
        priced = [prices for one in members[1:] or members if (prices := one.policy.prices()) is not None]
        mine = slice(worker.device, worker.device + 1)
        return max(priced, key=lambda prices: float(prices.slot_price[mine].sum()), default=None)

    def worker(self, name: str) -> Worker:
        """The worker of this name. Raises ConfigError when there is none."""
        try:
            return self.workers[name]
        except KeyError:
            raise ConfigError(f"worker {name!r} is unknown; there are: {', '.join(self.workers) or 'none'}") from None

    def add(self, worker: Worker, joined_s: float) -> list[Controller]:
        """A worker joins with the capacity it has. Raises ConfigError when its name is taken.

        The controllers at which somebody may wait whom `of` would send to another now.
        """
        if worker.name in self.workers:
            raise ConfigError(f"worker {worker.name!r} is in the fleet already; choose another name")
        device = Device(
            worker.name,
            worker.batch_slots,
            worker.kv_tokens,
            worker.block_size,
            token_budget=worker.token_budget,
        )
        if self.started is None:
            self.started = Controller(self.policy, [device], self.predictor, learn_on_update=True)
            self._parts = Parts(self.started, self.workers, self._make_policy)
            worker.device = 0
        else:
            worker.device = self.started.device_joined(device)
        worker.joined_s = joined_s
        self.workers[worker.name] = self.by_device[worker.device] = worker
        return self._parts.follow() if self._parts is not None else []

    def rename(self, worker: Worker, name: str) -> None:
        """Another worker is to have its name."""
        del self.workers[worker.name]
        worker.name = name
        self.workers[name] = worker

    def remove(self, name: str) -> tuple[list[Lease], list[Controller]]:
        """A worker is gone; its leases, which are closed now, and controllers as `add` gives back."""
        worker = self.workers.pop(self.worker(name).name)
        del self.by_device[worker.device]
        leases = list(self.controller.device_left(worker.device))
        return leases, self._parts.follow() if self._parts is not None else []

    def follow(self, worker: Worker) -> None:
        """Let its device take requests, or not, as the worker does."""
        if worker.accepts():
            self.controller.device_resumed(worker.device)
        else:
            self.controller.device_draining(worker.device)
        if self._parts is not None:
            self._parts.refresh()

    def fit_capacities(self, now_s: float) -> bool:
        """Make the devices as large as their workers are believed to be now; whether a largest one has grown."""
        if self.started is None:
            return False
        fleet, changed, grown = self.started.state.fleet, False, False
        largest_before = fleet.largest_kv_tokens
        for worker in self.workers.values():
            slots, kv_tokens = worker.slots_believed(now_s), worker.kv_believed(now_s)
            if slots != fleet.batch_slots[worker.device] or kv_tokens != fleet.kv_tokens[worker.device]:
                self.started.device_resized(worker.device, slots, kv_tokens)
                changed = True
        if changed and self._parts is not None:
            grown = self._parts.refresh()
        return grown or fleet.largest_kv_tokens > largest_before

    def make_later(self, make_policy: Callable[[], Policy]) -> None:
        """Policies that are needed later are made so."""
        self._make_policy = make_policy
        if self._parts is not None:
            self._parts.make_policy = make_policy

    def set_policy(self, make_policy: Callable[[], Policy]) -> None:
        """Go on under another policy, which is told of everybody in the queue."""
        self.make_later(make_policy)
        self.policy = make_policy()
        for k, controller in enumerate(self.controllers()):
            controller.policy = make_policy() if k else self.policy
            queue = controller.state.queue
            for request_id, length_class in zip(queue.ids.tolist(), queue.length_class.tolist(), strict=True):
                request = queue.request(request_id)
                controller.policy.request_arrived(request.arrival_s, request, length_class)

    def mean_tokens(self, length_class: int) -> float:
        """What a class was expected to be, as of the last update; the sum over its survival function is not cheap."""
        lengths = self.controller.state.lengths
        if self._means_version != lengths.version:
            self._means_version, self._means = lengths.version, lengths.survival.sum(axis=1).tolist()
        return self._means[length_class]

    def drain_s(self, waiting: int) -> float:
        """Roughly when there will be room: so many that wait, at the rate at which requests end."""
        if self.started is None:
            return _UNKNOWN_DRAIN_S
        fleet = self.started.state.fleet
        slots, period_s = max(int(fleet.batch_slots[fleet.active].sum()), 1), fleet.pace_s()[1]
        drain_s = math.ceil(waiting * self.mean_tokens(0) * period_s / slots)
        return min(max(drain_s, _LEAST_DRAIN_S), _MOST_DRAIN_S)
