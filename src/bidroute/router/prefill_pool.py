"""The prefill workers, and what each of them has to do and to hold: pure book-keeping, times come from a clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bidroute.errors import ConfigError
from bidroute.router.workers import Worker

AT_ONCE_TOKENS = 8192  # prompt tokens that a worker may have to do: about what engines take into one iteration
AT_ONCE_S = 1.0  # or as many as it does in this time, where that is more
FULL_KV = 0.95  # of a prefill worker's KV: beyond it the engine's own queue would begin
SPEED_MEMORY = 0.95  # what a prefill leaves of the weight of those before it


class LeaseStage(Enum):
    """Where a prompt is between its prefill and its decode."""

    SENT = "sent"  # the prefill worker has to process it
    WAITING = "waiting"  # processed; its KV is held there for a request that waits for a decode worker
    HANDED = "handed"  # a decode worker has been told to fetch the KV
    ABANDONED = "abandoned"  # nobody will fetch the KV; it stays until its lease ends
    CLOSED = "closed"


class PrefillLoad:
    """One prefill worker with the prompts it has; of each a lease that is closed exactly once."""

    def __init__(self, worker: Worker, clock: Callable[[], float]) -> None:
        self.worker = worker
        self.requests = dict.fromkeys(LeaseStage, 0)
        self.tokens = dict.fromkeys(LeaseStage, 0)
        self.prefilled = 0  # prompts in all
        self._clock = clock
        self._busy_since_s = math.nan
        self._done_tokens = 0.0
        self._busy_s = 0.0

    @property
    def to_do_tokens(self) -> int:
        """Prompt tokens it has been sent and not answered."""
        return self.tokens[LeaseStage.SENT]

    @property
    def held_tokens(self) -> int:
        """Prompt tokens whose KV it keeps for decode workers."""
        tokens = self.tokens
        return tokens[LeaseStage.WAITING] + tokens[LeaseStage.HANDED] + tokens[LeaseStage.ABANDONED]

    @property
    def tokens_per_s(self) -> float | None:
        """Its speed while it had something to do, mostly of the last prompts; None before the first."""
        return self._done_tokens / self._busy_s if self._busy_s > 0.0 else None

    def count(self, stage: LeaseStage, tokens: int, sign: int) -> None:
        """A prompt comes to (`sign` 1) or leaves (-1) a stage."""
        if stage is LeaseStage.SENT and not self.requests[stage]:
            self._busy_since_s = self._clock()
        self.requests[stage] += sign
        self.tokens[stage] += sign * tokens

    def did(self, tokens: int) -> None:
        """It answered for a prompt of so many tokens."""
        now_s = self._clock()
        self.prefilled += 1
        self._done_tokens = SPEED_MEMORY * self._done_tokens + tokens
        self._busy_s = SPEED_MEMORY * self._busy_s + max(now_s - self._busy_since_s, 1e-6)
        self._busy_since_s = now_s

    def has_room(self, prompt_tokens: int) -> bool:
        """Whether it can begin with this prompt about now: the engine should not queue, and can hold the KV."""
        worker, now_s = self.worker, self._clock()
        sent, to_do_tokens = self.requests[LeaseStage.SENT], self.to_do_tokens
        if not sent and not self.held_tokens:
            return worker.foreign_kv_tokens + prompt_tokens <= worker.usable_kv_tokens
        if to_do_tokens + self.held_tokens + prompt_tokens > FULL_KV * worker.kv_believed(now_s):
            return False
        if not sent:
            return True
        at_once_tokens = max(AT_ONCE_TOKENS, AT_ONCE_S * (self.tokens_per_s or 0.0))
        return sent < worker.slots_believed(now_s) and to_do_tokens + prompt_tokens <= at_once_tokens


@dataclass(slots=True, eq=False)
class PrefillLease:
    """One prompt at its prefill worker. `params` are what its KV is fetched with, as JSON, once it is processed;
    `expires_s` is when the worker gives that KV up. Times are the router's clock, in seconds."""

    load: PrefillLoad
    tokens: int
    sent_s: float
    stage: LeaseStage = LeaseStage.SENT
    params: bytes = b""
    prefilled_s: float = math.nan
    expires_s: float = math.inf

    @property
    def worker(self) -> Worker:
        """Where it is."""
        return self.load.worker

    def become(self, stage: LeaseStage) -> None:
        """It is in another stage now; one that is closed stays so."""
        if self.stage is not LeaseStage.CLOSED:
            self.load.count(self.stage, self.tokens, -1)
            self.stage = stage
            if stage is not LeaseStage.CLOSED:
                self.load.count(stage, self.tokens, 1)

    def resize(self, tokens: int) -> None:
        """Its prompt has so many tokens in truth."""
        if self.stage is not LeaseStage.CLOSED:
            self.load.tokens[self.stage] += tokens - self.tokens
            self.tokens = tokens

    def let_go(self) -> None:
        """Its request needs it no more: an unfinished prefill is cut off, KV that is there stays for its lease."""
        self.become(LeaseStage.CLOSED if self.stage is LeaseStage.SENT else LeaseStage.ABANDONED)


class PrefillPool:
    """Prefill workers by name: those in service (`loads`), and those that are `expected` but have not answered yet.

    KV is held for `lease_s` after a prefill.
    """

    def __init__(self, clock: Callable[[], float], lease_s: float) -> None:
        self.loads: dict[str, PrefillLoad] = {}
        self.expected: set[str] = set()
        self.lease_s = lease_s
        self._clock = clock
        self._holding: deque[PrefillLease] = deque()  # in order of expiry: all have the same time

    def __bool__(self) -> bool:
        return bool(self.loads or self.expected)

    def add(self, worker: Worker) -> None:
        """A worker joins. Raises ConfigError when its name is taken."""
        if worker.name in self.loads:
            raise ConfigError(f"prefill worker {worker.name!r} is there already; choose another name")
        self.expected.discard(worker.name)
        self.loads[worker.name] = PrefillLoad(worker, self._clock)

    def serves(self, model: str) -> bool:
        """Whether requests for this model are prefilled here; a worker that has not answered yet may serve it."""
        return bool(self.expected) or any(load.worker.serves(model) for load in self.loads.values())

    def total(self, stage: LeaseStage) -> tuple[int, int]:
        """Requests and tokens in this stage, over all workers."""
        loads = self.loads.values()
        return sum(load.requests[stage] for load in loads), sum(load.tokens[stage] for load in loads)

    def largest_prompt_tokens(self) -> int | None:
        """The longest prompt that any of them can process; None while there is none."""
        return max((load.worker.usable_kv_tokens for load in self.loads.values()), default=None)

    def choose(self, model: str, prompt_tokens: int, tried: tuple[str, ...]) -> PrefillLoad | None:
        """Where a prompt would be done first: the fewest tokens to do, for the worker's speed; None without room.

        Workers in `tried` only where no other could take it at all.
        """
        able = [
            load
            for load in self.loads.values()
            if load.worker.accepts() and load.worker.serves(model) and load.worker.usable_kv_tokens >= prompt_tokens
        ]
        fresh = [load for load in able if load.worker.name not in tried] or able
        free = [load for load in fresh if load.has_room(prompt_tokens)]
        if len(free) < 2:
            return free[0] if free else None
        known = [speed for load in self.loads.values() if (speed := load.tokens_per_s) is not None]
        usual = sum(known) / len(known) if known else 1.0

        def until_done(load: PrefillLoad) -> tuple[float, float]:
            to_do_s = (load.to_do_tokens + prompt_tokens) / (load.tokens_per_s or usual)
            return to_do_s, (load.to_do_tokens + load.held_tokens) / load.worker.kv_tokens

        return min(free, key=until_done)

    def send(self, load: PrefillLoad, prompt_tokens: int) -> PrefillLease:
        """A prompt goes to this worker: its lease."""
        load.count(LeaseStage.SENT, prompt_tokens, 1)
        return PrefillLease(load, prompt_tokens, self._clock())

    def hold(self, lease: PrefillLease, params: bytes, prompt_tokens: int) -> None:
        """The prompt is processed, and its KV kept to be fetched with `params`; `prompt_tokens` is its true length."""
        now_s = self._clock()
        lease.load.did(prompt_tokens)
        lease.become(LeaseStage.WAITING)
        lease.resize(prompt_tokens)
        lease.params, lease.prefilled_s, lease.expires_s = params, now_s, now_s + self.lease_s
        self._holding.append(lease)

    def expire(self) -> None:
        """Close the leases of KV that is gone by now. Those of requests that still wait for it are the caller's."""
        now_s = self._clock()
        while self._holding and (self._holding[0].stage is LeaseStage.CLOSED or self._holding[0].expires_s <= now_s):
            lease = self._holding.popleft()
            lease.become(LeaseStage.CLOSED)
