"""Requests of several sequences: `n`, `best_of`, lists of prompts."""

from __future__ import annotations

import asyncio

import pytest

from bidroute.router.tickets import Failure, Job
from tests.router.bench import JOB, Bench
from tests.soak.live import LiveWorker, leaks, routed, until

WIDE = Job("m", 400, choices=3)


def prompts(bench: Bench, g: int = 0) -> list[int]:
    return bench.dispatcher.controller.state.fleet.ledgers[g].prompt_tokens.tolist()


async def test_each_sequence_has_a_lease_until_the_request_ends(make) -> None:
    bench = make()
    bench.worker("a", slots=4, kv_tokens=10_000)
    ticket, single = bench.dispatcher.submit(WIDE), bench.dispatcher.submit(JOB)
    assert await bench.where(ticket) == "a"
    assert await bench.where(single) == "a"
    assert prompts(bench) == [100] * 4
    bench.dispatcher.started(ticket)
    bench.dispatcher.progressed(ticket, 60)  # over all of them
    ledger = bench.dispatcher.controller.state.fleet.ledgers[0]
    assert sorted(ledger.decoded_tokens.tolist()) == [0, 20, 20, 20]
    bench.dispatcher.finished(ticket, 120, 90)
    assert bench.leases() == 1
    totals = bench.dispatcher.totals
    assert (totals.prompt_tokens, totals.output_tokens) == (120, 90)
    lengths = bench.dispatcher.controller.state.lengths
    assert lengths.finished.sum() == 1


async def test_usage_of_several_prompts_calibrates_by_one(make) -> None:
    bench = make()
    bench.worker("a", slots=4, kv_tokens=10_000)
    before = bench.dispatcher.estimates.rates.estimate("m", 4000)
    ticket = bench.dispatcher.submit(Job("m", 400, choices=4, prompts=2))
    await bench.settle()
    bench.dispatcher.finished(ticket, 200, 40)
    assert bench.dispatcher.estimates.rates.estimate("m", 4000) == pytest.approx(before, rel=0.01)
    assert bench.dispatcher.totals.prompt_tokens == 200


@pytest.mark.parametrize("policy", ["bid_price", "fifo+safety"])
async def test_it_waits_for_slots_for_all_and_nobody_takes_them_meanwhile(make, policy: str) -> None:
    bench = make(policy=policy)
    bench.worker("a", slots=4, kv_tokens=10_000)
    running = [bench.dispatcher.submit(JOB) for _ in range(3)]
    await bench.settle()
    wide = bench.dispatcher.submit(WIDE)
    assert await bench.where(wide) is None
    late = [bench.dispatcher.submit(JOB) for _ in range(2)]
    assert await bench.where(late[0]) is None
    bench.dispatcher.finished(running[0], None, 1)
    assert await bench.where(wide) is None
    assert await bench.where(late[0]) is None
    bench.dispatcher.finished(running[1], None, 1)
    assert await bench.where(wide) == "a"
    assert bench.leases() == 4
    for ticket in (*running, wide, *late):
        bench.dispatcher.cancelled(ticket)
    assert bench.leases() == 0


async def test_who_gives_up_sets_the_room_free_again(make) -> None:
    bench = make()
    bench.worker("a", slots=2, kv_tokens=10_000)
    running = bench.dispatcher.submit(JOB)
    await bench.settle()
    wide = bench.dispatcher.submit(Job("m", 400, choices=2))
    assert await bench.where(wide) is None
    late = bench.dispatcher.submit(JOB)
    assert await bench.where(late) is None
    bench.dispatcher.cancelled(wide)
    assert await bench.where(late) == "a"
    bench.dispatcher.finished(running, None, 1)
    bench.dispatcher.finished(late, None, 1)
    assert bench.leases() == 0


async def test_more_sequences_than_a_worker_has_slots_take_it_whole(make) -> None:
    bench = make()
    bench.worker("a", slots=2, kv_tokens=1000)
    ticket = bench.dispatcher.submit(Job("m", 400, choices=50))
    assert await bench.where(ticket) == "a"
    assert bench.leases() == 2
    bench.dispatcher.finished(ticket, None, 500)
    assert bench.leases() == 0


async def test_kv_of_all_sequences_is_looked_at(make) -> None:
    bench = make()
    bench.worker("a", slots=8, kv_tokens=600)
    first = bench.dispatcher.submit(Job("m", 10, prompt_tokens=200))
    assert await bench.where(first) == "a"
    wide = bench.dispatcher.submit(WIDE)  # one of 100 tokens would fit beside it
    assert await bench.where(wide) is None
    bench.dispatcher.finished(first, None, 5)
    assert await bench.where(wide) == "a"


async def test_a_failed_one_is_tried_elsewhere_and_a_worker_may_go(make) -> None:
    bench = make()
    bench.worker("a", slots=3, kv_tokens=9000), bench.worker("b", slots=3, kv_tokens=9000)
    ticket = bench.dispatcher.submit(WIDE)
    first = await bench.where(ticket)
    bench.dispatcher.failed(ticket, Failure.FAULT)
    assert bench.leases() == 0
    bench.dispatcher.retry(ticket)
    second = await bench.where(ticket)
    assert {first, second} == {"a", "b"}
    assert bench.leases() == 3
    assert bench.dispatcher.members.remove_worker(second) == [ticket]
    bench.dispatcher.finished(ticket, None, 9)
    assert bench.leases() == 0


async def test_on_arrival_it_goes_at_once(make) -> None:
    bench = make(policy="round_robin")
    bench.worker("a", slots=2, kv_tokens=10_000)
    tickets = [bench.dispatcher.submit(WIDE) for _ in range(3)]
    await bench.settle()
    assert all(ticket.worker for ticket in tickets)
    for ticket in tickets:
        bench.dispatcher.finished(ticket, None, 9)
    assert bench.leases() == 0


async def test_engines_neither_queue_nor_preempt_under_a_burst_of_them() -> None:
    fleet = [LiveWorker(f"w{k}", batch_slots=6, kv_tokens=1600, latency="affine:0.005,0,0") for k in range(2)]
    for worker in fleet:
        await worker.start()
    most = 0
    async with routed(fleet, http={"answer_timeout_s": 60.0}) as router:
        await until(lambda: len(router.dispatcher.workers) == 2)
        asked = [
            asyncio.create_task(router.ask(30, choices=1 + k % 4, prompt_tokens=60, stream=k % 3 > 0))
            for k in range(60)
        ]
        while not all(one.done() for one in asked):
            engines = [worker.app.engine for worker in fleet]
            most = max(most, *(engine.running + len(engine.waiting) for engine in engines))
            await asyncio.sleep(0.003)
        assert {(one.result().kind, one.result().in_order) for one in asked} == {("whole", True)}
        assert sum(worker.app.engine.counters.preemptions for worker in fleet) == 0
        assert most <= 6
        totals = router.dispatcher.totals
        assert totals.output_tokens == sum(30 * (1 + k % 4) for k in range(60))
        assert totals.prompt_tokens == 60 * 60
        await until(lambda: not leaks(router.dispatcher))
