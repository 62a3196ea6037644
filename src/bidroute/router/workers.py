"""One upstream worker: what it can hold, what it may be sent now, and how it has been doing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bidroute.router.breaker import Breaker, BreakerState
from bidroute.router.calibration import PromptFlow

RAMP_FROM = 0.25  # of a new worker's slots at first
RAMP_S = 4.0  # seconds until it may use all of them
PRESSED_S = 2.0  # seconds until one slot, given up under back-pressure, is tried again
CARE_PER_PREEMPTION = 0.03  # of its KV, left free after each preemption seen
MOST_CARE = 0.3
CARE_FORGOTTEN_S = 60.0  # seconds in which the care falls by e
PREFILL, DECODE, BOTH = "prefill", "decode", "both"  # roles


@dataclass(slots=True, eq=False)
class Worker:
    """A vLLM or SGLang server.

    `url` has no trailing slash; `headers` go out with every request to it (its API key); `models` are those it serves
    (None: not known yet, taken to serve all). `device` is its index in the fleet. `batch_slots` and `kv_tokens` are
    what it has; `slots_believed` and `kv_believed` what it may be sent now: less while it ramps up, after it has pushed
    back or preempted, or when somebody else uses it too. `token_budget` is that of its iterations, 0 where unknown.
    `events_heard` grows with whatever comes out of its streams. `role` is PREFILL for one that only prefills.
    """

    name: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    models: frozenset[str] | None = None
    device: int = -1
    kind: str = ""
    role: str = BOTH
    batch_slots: int = 1
    kv_tokens: int = 1
    block_size: int = 1
    token_budget: int = 0
    breaker: Breaker = field(default_factory=Breaker)
    draining: bool = False
    joined_s: float = -math.inf
    slots_lost: int = 0
    pressed_s: float = 0.0
    foreign_slots: int = 0
    foreign_kv_tokens: int = 0
    engine_waiting: int = 0
    preemptions: int = 0
    output_tokens_per_s: float = 0.0
    events_heard: int = 0
    prompts: PromptFlow = field(default_factory=PromptFlow)
    _care: float = 0.0
    _cared_s: float = 0.0

    @property
    def usable_kv_tokens(self) -> int:
        """KV tokens in whole blocks: the most that one request can ever have there."""
        return self.kv_tokens // self.block_size * self.block_size

    def serves(self, model: str) -> bool:
        """Whether requests for this model may go here."""
        return self.models is None or not model or model in self.models

    def pressed(self, now_s: float, running: int) -> None:
        """It has pushed back with `running` requests of ours on it: believe in no more slots than that for a while."""
        self.slots_lost = max(self.batch_slots - max(running, 1), 0)
        self.pressed_s = now_s

    def preempted(self, now_s: float, count: int) -> None:
        """It threw `count` requests out of its batch: leave more of its KV free for a while."""
        self._care = min(self._care_now(now_s) + CARE_PER_PREEMPTION * count, MOST_CARE)
        self._cared_s = now_s
        self.preemptions += count

    def slots_believed(self, now_s: float) -> int:
        """How many requests it may hold now."""
        if self.breaker.state is BreakerState.HALF_OPEN:
            return 1
        ramp = RAMP_FROM + (1.0 - RAMP_FROM) * (now_s - self.joined_s) / RAMP_S
        slots = self.batch_slots if ramp >= 1.0 else math.ceil(self.batch_slots * ramp)
        if self.slots_lost:
            regained = int(max(now_s - self.pressed_s, 0.0) / PRESSED_S)
            slots = min(slots, self.batch_slots - max(self.slots_lost - regained, 0))
        return max(slots - self.foreign_slots, 1)

    def kv_believed(self, now_s: float) -> int:
        """How many KV tokens it may hold now."""
        tokens = int(self.kv_tokens * (1.0 - self._care_now(now_s))) if self._care else self.kv_tokens
        return max(tokens - self.foreign_kv_tokens, self.block_size)

    def accepts(self) -> bool:
        """Whether it may be sent anything now."""
        return not self.draining and self.breaker.state is not BreakerState.OPEN

    def _care_now(self, now_s: float) -> float:
        return self._care * math.exp(-max(now_s - self._cared_s, 0.0) / CARE_FORGOTTEN_S)
