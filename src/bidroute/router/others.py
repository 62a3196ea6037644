"""What runs on a worker and is not ours: other routers sent it, or clients, or this router before a restart."""

from __future__ import annotations

from typing import NamedTuple

from bidroute.router.readings import Reading
from bidroute.router.workers import Worker

ROUNDING_BLOCKS = 2  # of KV per request, by which an engine's account and ours may differ


class Ours(NamedTuple):
    """Our leases on a worker, and the KV tokens they hold; `starting`: those of them without output yet."""

    requests: int
    kv_tokens: int
    starting: int
    starting_tokens: int


class Others:
    """The load of others on one worker, from its readings.

    A reading takes time, and an engine counts by steps, so requests of ours that are only starting may be in it or not.
    It thus bounds the load of others from both sides, and what is believed moves no further than the bounds on which
    two readings agree.
    """

    def __init__(self) -> None:
        self._low, self._high = (0, 0), (0, 0)

    def first(self, worker: Worker, reading: Reading) -> None:
        """Nothing of ours runs there yet: all that does is of others."""
        worker.foreign_slots, worker.foreign_kv_tokens = _requests(reading), _kv_tokens(worker, reading)
        self._low = self._high = worker.foreign_slots, worker.foreign_kv_tokens

    def seen(self, worker: Worker, reading: Reading, ours: Ours) -> None:
        """Another reading came, while this is what the ledger has of ours."""
        slack_tokens = ROUNDING_BLOCKS * worker.block_size * ours.requests
        more, tokens = _requests(reading) - ours.requests, _kv_tokens(worker, reading) - ours.kv_tokens
        low = _bound(more, tokens - slack_tokens)
        high = _bound(more + ours.starting, tokens + ours.starting_tokens)
        believed = worker.foreign_slots, worker.foreign_kv_tokens
        worker.foreign_slots, worker.foreign_kv_tokens = (
            min(max(before, min(a, b)), max(c, d))
            for before, a, b, c, d in zip(believed, low, self._low, high, self._high, strict=True)
        )
        self._low, self._high = low, high


def _requests(reading: Reading) -> int:
    return (reading.running or 0) + (reading.waiting or 0)


def _kv_tokens(worker: Worker, reading: Reading) -> int:
    return int((reading.kv_usage or 0.0) * worker.kv_tokens)


def _bound(requests: int, kv_tokens: int) -> tuple[int, int]:
    """Nobody holds KV without a request."""
    return (requests, max(kv_tokens, 0)) if requests > 0 else (0, 0)
