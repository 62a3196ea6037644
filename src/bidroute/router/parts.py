"""Models that not every worker serves: each part of the fleet has a queue and prices of its own, over one ledger.

As long as all workers serve all models there are no parts, and everybody waits in the one queue of the whole fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bidroute.policies import Controller, Policy
from bidroute.router.workers import Worker

UNLISTED = "*"  # a model that no worker lists: workers that do not tell their models may serve it


@dataclass(slots=True, eq=False)
class Part:
    """The devices that serve `models`, and their controller. `models` are names that workers list, "" or UNLISTED."""

    controller: Controller
    devices: frozenset[int]
    models: set[str] = field(default_factory=set)


class Parts:
    """Which controller requests for a model wait at. `whole` is the fleet's own; `follow` after workers changed.

    Models that are served by the same workers share a part; it lives on, with its prices, while its workers change.
    """

    def __init__(self, whole: Controller, workers: Mapping[str, Worker], make_policy: Callable[[], Policy]) -> None:
        self.whole = whole
        self.make_policy = make_policy
        self._workers = workers
        self._parts: list[Part] = []
        self._by_model: dict[str, Controller] = {}
        self._listed: set[str] = set()

    def of(self, model: str) -> Controller:
        """Where requests for this model wait."""
        name = model if model in self._listed or not model else UNLISTED
        controller = self._by_model.get(name)
        if controller is None:
            controller = self._by_model[name] = self._find(name)
        return controller

    def controllers(self) -> list[Controller]:
        """All of them, the whole fleet's first."""
        return [self.whole, *(part.controller for part in self._parts)]

    def follow(self) -> list[Controller]:
        """Workers have come or gone; the controllers at which somebody may wait who should not any more."""
        self._listed = {model for worker in self._workers.values() for model in worker.models or ()}
        self._by_model.clear()
        before, everyone = self.controllers(), self._everyone()
        for part in list(self._parts):
            devices = [self._serving(name) for name in part.models if name in self._listed or name in ("", UNLISTED)]
            part.devices = max(devices, key=devices.count, default=frozenset())
            part.models = {name for name in part.models if self._serving(name) == part.devices}
            if part.devices in (everyone, frozenset()):
                self._parts.remove(part)
        self.refresh()
        divided = len(before) > 1 or any(self._serving(name) != everyone for name in self._listed)
        return before if divided else []

    def refresh(self) -> bool:
        """Devices drain, are back or have another size; whether one that is the largest of its part has grown."""
        grown = False
        for part in self._parts:
            before = part.controller.state.fleet.largest_kv_tokens
            part.controller.limit_to(self.whole, _indexes(part.devices))
            grown |= part.controller.state.fleet.largest_kv_tokens > before
        return grown

    def _find(self, name: str) -> Controller:
        devices = self._serving(name)
        if devices == self._everyone():
            return self.whole
        part = next((part for part in self._parts if part.devices == devices), None)
        if part is None:
            part = Part(self.whole.part(self.make_policy(), _indexes(devices)), devices)
            self._parts.append(part)
        part.models.add(name)
        return part.controller

    def _serving(self, name: str) -> frozenset[int]:
        workers = self._workers.values()
        if name == UNLISTED:
            return frozenset(worker.device for worker in workers if worker.models is None)
        return frozenset(worker.device for worker in workers if worker.serves(name))

    def _everyone(self) -> frozenset[int]:
        return frozenset(worker.device for worker in self._workers.values())


def _indexes(devices: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(sorted(devices), dtype=np.int64)
