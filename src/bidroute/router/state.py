"""What the router shows of itself: the JSON of `GET /admin/state` and of an explanation.

The dispatcher fills it, the page draws it, the metrics take their gauges from it. It holds no prompt, no key and no
tenant; request ids appear in decisions only. All of it is a copy: nothing here reaches back into the router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.pricing.prices import PriceSnapshot

# Upper edges of the bars in which the page shows how long the queue has waited; the last bar is open.
WAIT_EDGES_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class WorkerState(msgspec.Struct, frozen=True):
    """One worker. `status` is joining, ready, draining or down; `breaker` is closed, half-open or open; `role` is
    prefill, decode, or both.

    `slots_total` and `kv_total` (tokens) are what the router believes now, `…_used` what its ledger says. `period_s`
    is the time of one decode iteration. `slot_price` is for one batch slot over one period, `kv_price` for 1000 KV
    tokens over one period, both in reward units and by bucket of `RouterState.edges_periods`; empty under policies
    without prices. `token_price` likewise, for 1000 tokens of one iteration; empty without a `token_budget`.
    `engine_waiting` is the engine's own queue at the last reading.

    On a prefill worker `slots_used` are the prompts it has to process, of `prefill_tokens` in all; `kv_used` counts
    those and what it holds for decode workers; `prefill_tokens_per_s` is its speed (0: not seen yet).
    """

    name: str
    url: str
    status: str = "ready"
    breaker: str = "closed"
    kind: str = ""
    models: list[str] = []
    leases: int = 0
    slots_used: int = 0
    slots_total: int = 0
    kv_used: float = 0.0
    kv_total: int = 0
    period_s: float = 0.0
    engine_waiting: int = 0
    preemptions: int = 0
    output_tokens_per_s: float = 0.0
    slot_price: list[float] = []
    kv_price: list[float] = []
    token_price: list[float] = []
    role: str = "both"
    prefill_tokens: int = 0
    prefill_tokens_per_s: float = 0.0


class QueueState(msgspec.Struct, frozen=True):
    """Who waits. `waits` counts by `WAIT_EDGES_S` (one bar more than edges), `held` by reason at the last decision.

    Of those that wait, `for_prefill` wait for a prefill worker, and `prefilled` for a decode worker, their KV ready.
    """

    waiting: int = 0
    limit: int = 0
    oldest_wait_s: float = 0.0
    waits: list[int] = msgspec.field(default_factory=lambda: [0] * (len(WAIT_EDGES_S) + 1))
    wait_edges_s: list[float] = msgspec.field(default_factory=lambda: list(WAIT_EDGES_S))
    held: dict[str, int] = {}
    for_prefill: int = 0
    prefilled: int = 0


class RunnerUp(msgspec.Struct, frozen=True):
    """The best choice that was not taken: this request on this worker, worth `value`."""

    request_id: str
    worker: str
    value: float


class DecisionState(msgspec.Struct, frozen=True):
    """One request at one decision: `value` = sum of `reward` − sum of `price`, by term and by resource.

    `outcome` is "released" or "held"; `held_by` says by what; `instead` lists requests released in its place.
    `at_s` counts from the router's start.
    """

    request_id: str
    worker: str
    at_s: float
    wait_s: float
    outcome: str
    value: float
    reward: dict[str, float] = {}
    price: dict[str, float] = {}
    held_by: str | None = None
    instead: list[str] = []
    runner_up: RunnerUp | None = None


class TotalsState(msgspec.Struct):
    """Counts since the start, and the present rate.

    Every request ends as one of `finished`, `cancelled`, `failed` and `refused`.
    """

    requests: int = 0
    released: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    retries: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    output_tokens_per_s: float = 0.0


class RouterState(msgspec.Struct, frozen=True):
    """The router at one moment, `uptime_s` after its start. Every list of prices runs over `edges_periods`: n+1 edges
    for n buckets, in periods from now. `objective` maps every term of the objective in force to its number;
    `policies` and `presets` are the names that may be chosen."""

    uptime_s: float
    policy: str
    objective: dict[str, float]
    workers: list[WorkerState]
    queue: QueueState
    decisions: list[DecisionState]
    totals: TotalsState
    edges_periods: list[int] = []
    policies: list[str] = []
    presets: list[str] = []
    version: str = ""


class PrefillStep(msgspec.Struct, frozen=True):
    """One prefill of a request: `status` is waiting, prefilling, prefilled, handed over, or "failed: " and how.

    It waited `wait_s` for the worker (`held_by`: what the first in line waits for, decode or prefill workers), which
    took `prefill_s`. Whoever is prefilled must be handed over within `lease_left_s`.
    """

    status: str
    worker: str
    prompt_tokens: int
    wait_s: float
    prefill_s: float
    lease_left_s: float | None = None
    held_by: str | None = None


class RequestExplanation(msgspec.Struct, frozen=True):
    """All that is kept about one request: where it is (`status`), the workers tried, the decisions it lived through
    and its prefills on prefill workers, oldest first."""

    request_id: str
    status: str
    attempts: list[str]
    decisions: list[DecisionState]
    prefills: list[PrefillStep] = []


class DevicePrices(NamedTuple):
    """Prices of one worker by bucket, over one period: of one slot, of 1000 KV tokens, and of 1000 tokens of its
    iterations."""

    slot: list[float]
    kv: list[float]
    tokens: list[float]


def device_prices(
    snapshot: PriceSnapshot | None, device: int, batch_slots: int, kv_tokens: int, token_budget: int = 0
) -> DevicePrices:
    """One worker's prices as the page shows them; empty where the policy has no prices or not for this worker yet.

    Those of iterations also where it has no `token_budget`.
    """
    if snapshot is None or not 0 <= device < len(snapshot.slot_price) or batch_slots < 1 or kv_tokens < 1:
        return DevicePrices([], [], [])
    slot = snapshot.slot_price[device] / batch_slots
    kv = snapshot.kv_price[device] * (1000.0 / kv_tokens)
    tokens: list[float] = []
    if token_budget > 0 and snapshot.token_price is not None:
        tokens = (snapshot.token_price[device] * (1000.0 / token_budget)).tolist()
    return DevicePrices(slot.tolist(), kv.tolist(), tokens)


def count_waits(waits_s: FloatArray | Sequence[float]) -> list[int]:
    """How many waits fall into each bar of `WAIT_EDGES_S`; a wait equal to an edge is below it."""
    bars = np.searchsorted(np.array(WAIT_EDGES_S), np.asarray(waits_s, dtype=np.float64), side="left")
    counts: list[int] = np.bincount(bars, minlength=len(WAIT_EDGES_S) + 1).tolist()
    return counts
