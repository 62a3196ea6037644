"""What the parts of the router hand to one another: a request, its ticket, and why it failed or was refused."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from bidroute.errors import BidrouteError

if TYPE_CHECKING:
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
    the body has token ids. `choices` is the body's `n`. SLOs and the `deadline_s`, the longest wait in the router,
    count from the arrival, in seconds. `request_id` is what the client knows it by.
    """

    model: str
    prompt_bytes: int
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    choices: int = 1
    priority: float = 0.0
    ttft_slo_s: float = math.inf
    e2e_slo_s: float = math.inf
    tenant: str = ""
    deadline_s: float = math.inf
    request_id: str = ""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request inside the router; `worker` is where its lease is open, `attempts` the workers tried, in order.

    `output_tokens` were seen so far in this attempt, `started_s` is when the first one came, `failure` how it ended.
    `release` is done with the worker, or with a RefusedError, as soon as that is known.
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
