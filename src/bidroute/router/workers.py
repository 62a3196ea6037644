"""One upstream worker: what it can hold, what it may be sent now, and how it has been doing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bidroute.router.breaker import Breaker, BreakerState

RAMP_FROM = 0.25  # of a new worker's slots at first
RAMP_S = 4.0  # seconds until it may use all of them
PRESSED_S = 2.0  # seconds until one slot, given up under back-pressure, is tried again


@dataclass(slots=True, eq=False)
class Worker:
    """A vLLM or SGLang server.

    `url` has no trailing slash; `headers` go out with every request to it (its API key); `models` are those it serves
    (None: not known yet, taken to serve all). `device` is its index in the fleet. `batch_slots` and `kv_tokens` are
    what it has; `slots_believed` is what it may be sent now: fewer while it ramps up, or after it has pushed back.
    """

    name: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    models: frozenset[str] | None = None
    device: int = -1
    batch_slots: int = 1
    kv_tokens: int = 1
    block_size: int = 1
    max_model_len: int | None = None
    breaker: Breaker = field(default_factory=Breaker)
    draining: bool = False
    joined_s: float = -math.inf
    slots_lost: int = 0
    pressed_s: float = 0.0
    preemptions: int | None = None
    not_ours: int = 0

    def serves(self, model: str) -> bool:
        """Whether requests for this model may go here."""
        return self.models is None or not model or model in self.models

    def pressed(self, now_s: float, running: int) -> None:
        """It has pushed back with `running` requests of ours on it: believe in no more slots than that for a while."""
        self.slots_lost = max(self.batch_slots - max(running, 1), 0)
        self.pressed_s = now_s

    def slots_believed(self, now_s: float) -> int:
        """How many requests it may hold now."""
        ramp = RAMP_FROM + (1.0 - RAMP_FROM) * (now_s - self.joined_s) / RAMP_S
        slots = self.batch_slots if ramp >= 1.0 else math.ceil(self.batch_slots * ramp)
        if self.slots_lost:
            regained = int(max(now_s - self.pressed_s, 0.0) / PRESSED_S)
            slots = min(slots, self.batch_slots - max(self.slots_lost - regained, 0))
        if self.breaker.state is BreakerState.HALF_OPEN:
            return 1
        return max(slots - self.not_ours, 1)

    def accepts(self) -> bool:
        """Whether it may be sent anything now."""
        return not self.draining and self.breaker.state is not BreakerState.OPEN
