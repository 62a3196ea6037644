"""What is believed of the load of others, from readings that may be older or newer than the ledger."""

from __future__ import annotations

import pytest

from bidroute.router.others import Others, Ours
from bidroute.router.readings import Reading
from bidroute.router.workers import Worker

NONE = Ours(0, 0, 0, 0)


class Watched:
    """A worker of 1000 KV tokens in blocks of 10, and its readings."""

    def __init__(self, requests: int = 0, kv_tokens: int = 0) -> None:
        self.worker, self.others = Worker("a", "http://a", batch_slots=8, kv_tokens=1000, block_size=10), Others()
        self.others.first(self.worker, reading(requests, kv_tokens))

    def sees(self, requests: int, kv_tokens: int, ours: Ours = NONE) -> tuple[int, int]:
        self.others.seen(self.worker, reading(requests, kv_tokens), ours)
        return self.worker.foreign_slots, self.worker.foreign_kv_tokens


def reading(requests: int, kv_tokens: int) -> Reading:
    return Reading(running=requests, waiting=0, kv_usage=kv_tokens / 1000)


def test_whatever_runs_before_anything_of_ours_is_of_others() -> None:
    assert Watched(3, 200).sees(3, 200) == (3, 200)


def test_others_come_and_go_as_two_readings_agree() -> None:
    watched = Watched()
    assert watched.sees(2, 100) == (0, 0)
    assert watched.sees(2, 100) == (2, 100)
    assert watched.sees(0, 0) == (2, 100)
    assert watched.sees(0, 0) == (0, 0)


@pytest.mark.parametrize("counted", [0, 1])
def test_one_of_ours_that_only_starts_is_not_one_of_others_less(counted: int) -> None:
    """A reading that began before a release does not have it; that must not make room for another one."""
    watched, starting = Watched(5, 500), Ours(1, 20, 1, 20)
    for _ in range(3):
        assert watched.sees(5 + counted, 500 + 20 * counted, starting) == (5, 500)


def test_what_has_output_is_in_the_readings() -> None:
    watched, running = Watched(5, 500), Ours(2, 60, 0, 0)
    assert watched.sees(6, 460, running) == (5, 500)
    assert watched.sees(6, 460, running) == (4, 400)


def test_ours_alone_are_never_taken_for_others() -> None:
    watched = Watched()
    for requests, starting in ((1, 1), (3, 2), (6, 3), (8, 0), (2, 0), (0, 0)):
        ours = Ours(requests, 30 * requests, starting, 20 * starting)
        assert watched.sees(requests, 30 * requests + 10 * requests, ours) == (0, 0)
