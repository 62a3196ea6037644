"""Where a request goes that no policy is asked about, as one to be tried again: the least busy worker with room."""

from __future__ import annotations

from collections.abc import Iterable

from bidroute.core.fleet import Fleet
from bidroute.router.tickets import Ticket
from bidroute.router.workers import Worker

FULL_KV = 0.9  # of a worker's KV: the rest is left for what its batch will grow by


def choose_by_load(ticket: Ticket, workers: Iterable[Worker], fleet: Fleet) -> Worker | None:
    """The least busy worker not tried yet, a tried one if there is no other; None while none of them has room."""
    able = [one for one in workers if one.accepts() and one.serves(ticket.job.model) and _holds(one, ticket)]
    fresh = [worker for worker in able if worker.name not in ticket.attempts] or able
    free = [worker for worker in fresh if _has_room(worker, ticket.prompt_tokens, fleet)]
    return min(
        free, key=lambda worker: fleet.open_leases[worker.device] / fleet.batch_slots[worker.device], default=None
    )


def least_busy(workers: Iterable[Worker], fleet: Fleet, model: str) -> Worker | None:
    """The worker for a request that takes no place in a batch, such as an embedding; None where no worker takes any."""
    able = [worker for worker in workers if worker.accepts() and worker.serves(model)]
    return min(able, key=lambda worker: fleet.open_leases[worker.device] / worker.batch_slots, default=None)


def _holds(worker: Worker, ticket: Ticket) -> bool:
    return worker.usable_kv_tokens > ticket.prompt_tokens


def _has_room(worker: Worker, prompt_tokens: int, fleet: Fleet) -> bool:
    """Whether a slot is free, and KV for the prompt with some to spare; an idle worker takes whatever it can hold."""
    g = worker.device
    if not fleet.open_leases[g]:
        return worker.foreign_kv_tokens + prompt_tokens < worker.usable_kv_tokens
    used = int(fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g])
    return bool(fleet.open_leases[g] < fleet.batch_slots[g] and used + prompt_tokens < FULL_KV * fleet.kv_tokens[g])
