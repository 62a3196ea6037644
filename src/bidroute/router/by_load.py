"""Where a request goes that no policy is asked about, as one to be tried again: the least busy worker with room."""

from __future__ import annotations

from collections.abc import Container, Iterable

from bidroute.core.fleet import Fleet
from bidroute.router.sequences import slots_needed
from bidroute.router.tickets import Ticket
from bidroute.router.workers import Worker

FULL_KV = 0.9  # of a worker's KV: the rest is left for what its batch will grow by


def choose_by_load(ticket: Ticket, workers: Iterable[Worker], fleet: Fleet, taken: Container[int]) -> Worker | None:
    """The least busy worker not tried yet, a tried one if there is no other; None while none of them has room.

    Devices in `taken` are kept for others. The worker that keeps room for this one goes before all.
    """
    fresh = _fresh(ticket, workers)
    free = [one for one in fresh if one.device not in taken and _has_room(one, ticket, fleet)]
    return ticket.reserved if ticket.reserved in free else _least_busy(free, fleet)


def choose_to_reserve(ticket: Ticket, workers: Iterable[Worker], fleet: Fleet, taken: Container[int]) -> Worker | None:
    """The worker that is to keep its room for this one until there is enough: as before, or the least busy."""
    fresh = [one for one in _fresh(ticket, workers) if one.device not in taken]
    return ticket.reserved if ticket.reserved in fresh else _least_busy(fresh, fleet)


def _fresh(ticket: Ticket, workers: Iterable[Worker]) -> list[Worker]:
    able = [one for one in workers if one.accepts() and one.serves(ticket.job.model) and _holds(one, ticket)]
    return [worker for worker in able if worker.name not in ticket.attempts] or able


def _least_busy(workers: list[Worker], fleet: Fleet) -> Worker | None:
    return min(
        workers, key=lambda worker: fleet.open_leases[worker.device] / fleet.batch_slots[worker.device], default=None
    )


def least_busy(workers: Iterable[Worker], fleet: Fleet, model: str) -> Worker | None:
    """The worker for a request that takes no place in a batch, such as an embedding; None where no worker takes any."""
    return _least_busy([worker for worker in workers if worker.accepts() and worker.serves(model)], fleet)


def _holds(worker: Worker, ticket: Ticket) -> bool:
    return worker.usable_kv_tokens > ticket.prompt_tokens


def _has_room(worker: Worker, ticket: Ticket, fleet: Fleet) -> bool:
    """Whether its slots are free, and KV for its prompts with some to spare; an idle worker takes what it can hold."""
    g, slots = worker.device, slots_needed(ticket, worker, fleet)
    if not fleet.open_leases[g]:
        return worker.foreign_kv_tokens + ticket.prompt_tokens < worker.usable_kv_tokens
    used = int(fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g]) + slots * ticket.prompt_tokens
    return bool(fleet.open_leases[g] + slots <= fleet.batch_slots[g] and used < FULL_KV * fleet.kv_tokens[g])
