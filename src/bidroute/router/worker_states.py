"""Workers as the page and the metrics show them, as far as prices have no part in it."""

from __future__ import annotations

from bidroute.router.breaker import BreakerState
from bidroute.router.prefill_pool import LeaseStage, PrefillLoad
from bidroute.router.state import WorkerState
from bidroute.router.workers import PREFILL, Worker


def worker_status(worker: Worker) -> str:
    """In a word."""
    if worker.draining:
        return "draining"
    return "down" if worker.breaker.state is BreakerState.OPEN else "ready"


def prefill_worker_state(load: PrefillLoad, now_s: float) -> WorkerState:
    """A prefill worker and what it has to do."""
    worker = load.worker
    sent = load.requests[LeaseStage.SENT]
    return WorkerState(
        name=worker.name,
        url=worker.url,
        status=worker_status(worker),
        breaker=worker.breaker.state.value,
        kind=worker.kind,
        models=sorted(worker.models or ()),
        leases=sent + sum(load.requests[stage] for stage in (LeaseStage.WAITING, LeaseStage.HANDED)),
        slots_used=sent,
        slots_total=worker.slots_believed(now_s),
        kv_used=float(load.to_do_tokens + load.held_tokens),
        kv_total=worker.kv_believed(now_s),
        engine_waiting=worker.engine_waiting,
        preemptions=worker.preemptions,
        role=PREFILL,
        prefill_tokens=load.to_do_tokens,
        prefill_tokens_per_s=load.tokens_per_s or 0.0,
    )
