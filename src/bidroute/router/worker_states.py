"""Workers as the page and the metrics show them."""

from __future__ import annotations

from typing import Any

from bidroute.core.fleet import Fleet
from bidroute.pricing.prices import PriceSnapshot
from bidroute.router.breaker import BreakerState
from bidroute.router.prefill_pool import LeaseStage, PrefillLoad
from bidroute.router.state import WorkerState, device_prices
from bidroute.router.workers import PREFILL, Worker


def _of_any(worker: Worker) -> dict[str, Any]:
    """What there is to say of a worker whatever it is used for."""
    ready = "down" if worker.breaker.state is BreakerState.OPEN else "ready"
    return {
        "name": worker.name,
        "url": worker.url,
        "status": "draining" if worker.draining else ready,
        "breaker": worker.breaker.state.value,
        "kind": worker.kind,
        "models": sorted(worker.models or ()),
        "engine_waiting": worker.engine_waiting,
        "preemptions": worker.preemptions,
    }


def decode_worker_state(worker: Worker, fleet: Fleet, prices: PriceSnapshot | None, role: str) -> WorkerState:
    """A worker of the policy's fleet, by the ledger, with its prices."""
    g, leases = worker.device, int(fleet.open_leases[worker.device])
    slots, kv_tokens = int(fleet.batch_slots[g]), int(fleet.kv_tokens[g])
    price = device_prices(prices, g, slots, kv_tokens, int(fleet.token_budget[g]))
    return WorkerState(
        **_of_any(worker),
        leases=leases,
        slots_used=leases,
        slots_total=slots,
        kv_used=float(fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g]),
        kv_total=kv_tokens,
        period_s=float(fleet.period_s[g]),
        output_tokens_per_s=worker.output_tokens_per_s,
        slot_price=price.slot,
        kv_price=price.kv,
        token_price=price.tokens,
        role=role,
    )


def prefill_worker_state(load: PrefillLoad, now_s: float) -> WorkerState:
    """A prefill worker and what it has to do."""
    worker = load.worker
    sent = load.requests[LeaseStage.SENT]
    return WorkerState(
        **_of_any(worker),
        leases=sent + sum(load.requests[stage] for stage in (LeaseStage.WAITING, LeaseStage.HANDED)),
        slots_used=sent,
        slots_total=worker.slots_believed(now_s),
        kv_used=float(load.to_do_tokens + load.held_tokens),
        kv_total=worker.kv_believed(now_s),
        role=PREFILL,
        prefill_tokens=load.to_do_tokens,
        prefill_tokens_per_s=load.tokens_per_s or 0.0,
    )
