"""What the parts of the router hand to one another: a request, its ticket, and why it failed or was refused."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from bidroute.errors import BidrouteError

if TYPE_CHECKING:
    from bidroute.router.prefill_pool import PrefillLease
    from bidroute.router.workers import Worker


class Failure(Enum):
    """Why a worker did not serve a request."""

    CLIENT = "client"  # 4xx: the request is at fault; passed on, and no mark against the worker
    BACK_PRESSURE = "back pressure"  # 429 or 503: the worker has less room than believed
    FAULT = "fault"  # refused, reset, 5xx, or no answer at all
    STALLED = "stalled"  # accepted, and then no progress


class RefusedError(BidrouteError):
    """The router does not take a request, or gives up waiting for it.

    `status` is the HTTP status, `code` a word for machines (`queue_full`, `deadline`, `never_fits`, …),
    `retry_after_s` when it may be worth another try.
    """

    def __init__(self, status: int, code: str, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


class Job(msgspec.Struct, frozen=True):
    """A client's request as the router needs to know it.

    `prompt_bytes` are bytes of prompt text, from which tokens are estimated; `prompt_tokens` is their number where
    the body has token ids; `exact_tokens` > 0 is the output length where the body fixes it. `choices` are the sequences
    to be made in all, of `prompts` prompts, whose mean the figures are. SLOs and the `deadline_s`, the longest wait in
    the router, count from the arrival, in seconds. `request_id` is what the client knows it by. `can_split`:
    whether its prefill and its decode may run on different workers.
    """

    model: str
    prompt_bytes: int
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    choices: int = 1
    prompts: int = 1
    exact_tokens: int = 0
    priority: float = 0.0
    ttft_slo_s: float = math.inf
    e2e_slo_s: float = math.inf
    tenant: str = ""
    deadline_s: float = math.inf
    request_id: str = ""
    can_split: bool = False

    @property
    def all_prompts(self) -> tuple[int, int | None]:
        """Bytes, or tokens where those are known, that the worker's sequences have as prompts in all."""
        tokens = self.prompt_tokens
        return self.prompt_bytes * self.choices, None if tokens is None else tokens * self.choices


@dataclass(slots=True, eq=False)
class Ticket:
    """One request inside the router; `worker` is where its lease is open, `attempts` the workers tried, in order.

    `prompt_tokens` are of one prompt; `siblings` are the leases of its sequences after the first. `reserved` is where
    room is being made for all of them. `output_tokens` were seen so far in this attempt, `started_s` is when the first
    one came, `failure` how it ended. `release` is done with the worker, or with a RefusedError, as soon as that is
    known. `stop`, while an attempt runs, ends it with an exception. Where prefill workers are used, `prefill` is the
    lease of its prompt there, and `prefill_tried` are those tried; `kv_ran_out` where it had to be given up because no
    decode worker took it in time.
    """

    id: int
    job: Job
    arrival_s: float
    prompt_tokens: int
    worker: Worker | None = None
    attempts: list[str] = field(default_factory=list)
    released_s: float = math.nan
    started_s: float = math.nan
    output_tokens: int = 0
    failure: Failure | None = None
    release: asyncio.Future[Worker] | None = None
    prefill: PrefillLease | None = None
    prefill_tried: tuple[str, ...] = ()
    kv_ran_out: bool = False
    stop: Callable[[BaseException], None] | None = None
    siblings: list[int] = field(default_factory=list)
    reserved: Worker | None = None

    def let_go_prefill(self) -> None:
        """It needs its prefill no more."""
        if self.prefill is not None:
            self.prefill.let_go()
            self.prefill = None
