"""A fleet that only remembers what it was told, and a state as a busy router would show it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from bidroute.core.objective import PRESETS, parse_objective
from bidroute.errors import ConfigError
from bidroute.router.fleet_admin import NoSuchError, worker_name
from bidroute.router.state import (
    DecisionState,
    PrefillStep,
    QueueState,
    RequestExplanation,
    RouterState,
    RunnerUp,
    TotalsState,
    WorkerState,
)

EDGES = [0, 1, 2, 3, 5, 8, 12, 18, 28, 43, 66, 100, 152, 231, 350, 532, 809, 1229, 1867, 2837, 32000]


class FakeFleet:
    """Remembers calls in `calls`; knows workers by name; `fail_with` is raised by the next change."""

    def __init__(self, workers: tuple[str, ...] = ()) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.names = set(workers)
        self.objective = "balanced"
        self.policy = "bid_price"
        self.fail_with: Exception | None = None

    def _note(self, *call: Any) -> None:
        if self.fail_with is not None:
            problem, self.fail_with = self.fail_with, None
            raise problem
        self.calls.append(call)

    def _known(self, name: str) -> None:
        if name not in self.names:
            raise NoSuchError(f"worker {name!r} is unknown; there are: {', '.join(sorted(self.names))}")

    async def add_worker(self, settings: dict[str, Any]) -> str:
        name = worker_name(settings)
        if name in self.names:
            raise ConfigError(f"worker {name!r} is there already; choose another name")
        self._note("add", settings)
        self.names.add(name)
        return name

    async def drain_worker(self, name: str) -> None:
        self._known(name)
        self._note("drain", name)

    async def remove_worker(self, name: str, *, now: bool = False) -> None:
        self._known(name)
        self._note("remove", name, now)
        self.names.remove(name)

    async def resize_worker(self, name: str, batch_slots: int | None, kv_tokens: int | None) -> None:
        self._known(name)
        self._note("resize", name, batch_slots, kv_tokens)

    async def set_objective(self, text: str) -> None:
        parse_objective(text)
        self._note("objective", text)
        self.objective = text

    async def set_policy(self, name: str) -> None:
        if name not in ("bid_price", "fifo"):
            raise ConfigError(f"policy {name!r} is unknown; choose from: bid_price, fifo")
        self._note("policy", name)
        self.policy = name

    def state(self) -> RouterState:
        return busy_state(self.objective, self.policy)

    def explain(self, request_id: str) -> RequestExplanation:
        found = [decision for decision in _decisions() if decision.request_id == request_id]
        if not found:
            raise NoSuchError(f"request {request_id!r} is unknown")
        prefill = PrefillStep("handed over", "p-l4", 1_730, wait_s=0.4, prefill_s=0.15)
        return RequestExplanation(request_id, "queued", [], found, [prefill])


def busy_state(objective: str = "balanced", policy: str = "bid_price") -> RouterState:
    """Five unlike workers under load, one draining, one down, and one that prefills for them."""
    return RouterState(
        uptime_s=8_040.0,
        policy=policy,
        objective=asdict(parse_objective(objective)),
        workers=_workers(),
        queue=QueueState(
            waiting=87,
            limit=10_000,
            oldest_wait_s=14.2,
            waits=[9, 12, 21, 26, 15, 4, 0, 0],
            held={"price": 41, "kv future": 30, "slots": 9, "kv now": 4, "order": 3},
            for_prefill=31,
            prefilled=56,
        ),
        decisions=_decisions(),
        totals=TotalsState(
            requests=48_211,
            released=48_030,
            finished=47_902,
            cancelled=112,
            failed=3,
            refused=25,
            retries=41,
            preemptions=2,
            prompt_tokens=61_200_000,
            output_tokens=12_400_000,
            output_tokens_per_s=5_830.0,
        ),
        edges_periods=EDGES,
        policies=["bid_price", "fifo", "join_shortest_queue", "round_robin"],
        presets=list(PRESETS),
        version="0.1.0",
    )


def _workers() -> list[WorkerState]:
    rows = [
        ("h100-a", "ready", "closed", 61, 64, 402_000, 433_000, 0.021, 0.9, 2.4),
        ("h100-b", "ready", "closed", 58, 64, 371_000, 433_000, 0.020, 0.8, 1.9),
        ("l40s", "ready", "closed", 14, 16, 49_100, 61_400, 0.034, 1.4, 3.1),
        ("a10-old", "draining", "closed", 3, 8, 6_200, 20_480, 0.052, 0.0, 0.0),
        ("10.0.0.7:8000", "down", "open", 0, 16, 0, 61_400, 0.0, 0.0, 0.0),
    ]
    prefill = WorkerState(
        "p-l4",
        "http://p-l4.example:8000",
        kind="vllm",
        models=["llama-3.1-8b"],
        leases=7,
        slots_used=3,
        slots_total=64,
        kv_used=21_400,
        kv_total=98_000,
        role="prefill",
        prefill_tokens=5_120,
        prefill_tokens_per_s=11_800.0,
    )
    decoding = [
        WorkerState(
            name=name,
            url=f"http://{name}.example:8000" if ":" not in name else f"http://{name}",
            status=status,
            breaker=breaker,
            kind="vllm",
            models=["llama-3.1-8b"],
            leases=used,
            slots_used=used,
            slots_total=slots,
            kv_used=kv_used,
            kv_total=kv_total,
            period_s=period_s,
            engine_waiting=int(name == "l40s"),
            preemptions=2 * int(name == "l40s"),
            output_tokens_per_s=used / period_s if period_s else 0.0,
            slot_price=_fading(slot_price, 4.0, 0.0),
            kv_price=_fading(kv_price, 9.0, 5.0),
            role="decode",
        )
        for name, status, breaker, used, slots, kv_used, kv_total, period_s, slot_price, kv_price in rows
    ]
    return [*decoding, prefill]


def _fading(height: float, length: float, peak: float) -> list[float]:
    if not height:
        return [0.0] * (len(EDGES) - 1)
    return [0.001 * height * math.exp(-(((i - peak) / length) ** 2)) for i in range(len(EDGES) - 1)]


def _decisions() -> list[DecisionState]:
    rows: list[tuple[str, str, float, str, dict[str, float], dict[str, float], str | None]] = [
        ("chatcmpl-91ab3", "h100-a", 0.04, "released", {"throughput": 1.0}, {"slots": 0.12, "kv": 0.31}, None),
        ("48209", "l40s", 3.1, "held", {"throughput": 1.0, "tail": 0.2}, {"slots": 0.5, "kv": 1.61}, "price"),
        ("48201", "h100-b", 7.9, "released", {"throughput": 1.0, "tail": 1.4}, {"slots": 0.4, "kv": 1.1}, None),
        ("48198", "h100-b", 8.2, "held", {"throughput": 1.0, "tail": 1.1}, {"slots": 0.3, "kv": 0.9}, "kv future"),
        ("48183", "l40s", 11.4, "released", {"throughput": 1.0, "tail": 2.6}, {"slots": 0.8, "kv": 1.9}, None),
        ("48210", "h100-a", 0.2, "held", {"throughput": 1.0}, {"slots": 0.2, "kv": 0.5}, "slots"),
    ]
    return [
        DecisionState(
            request_id=request_id,
            worker=worker,
            at_s=8_039.0,
            wait_s=wait_s,
            outcome=outcome,
            value=sum(reward.values()) - sum(price.values()),
            reward=reward,
            price=price,
            held_by=held_by,
            instead=["48201"] if held_by else [],
            runner_up=RunnerUp(request_id if not held_by else "48201", "h100-b", 0.41) if worker != "l40s" else None,
        )
        for request_id, worker, wait_s, outcome, reward, price, held_by in rows
    ]
