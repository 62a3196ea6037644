"""What becomes of workers: breakers, back-pressure, ramps, and fleets that change."""

from __future__ import annotations

import asyncio

import pytest

from bidroute.errors import ConfigError
from bidroute.router.dispatcher import TICK_S
from bidroute.router.tickets import Failure, Job
from bidroute.router.waiting_room import READMITTED
from bidroute.router.workers import PRESSED_S, RAMP_S, Worker
from tests.router.bench import JOB


async def test_a_hang_takes_a_worker_out_until_it_answers_and_serves_one(make) -> None:
    bench = make()
    worker = bench.worker("a", slots=4)
    ticket = bench.dispatcher.submit(JOB)
    await bench.settle()
    bench.dispatcher.failed(ticket, Failure.STALLED)
    waiting = [bench.dispatcher.submit(JOB) for _ in range(3)]
    bench.dispatcher.members.worker_alive(worker)  # too early
    assert await bench.where(waiting[0]) is None
    bench.clock.now_s += 2.0
    bench.dispatcher.members.worker_alive(worker)
    assert await bench.where(waiting[0]) == "a"
    assert await bench.where(waiting[1]) is None
    bench.dispatcher.finished(waiting[0], None, 3)
    assert await bench.where(waiting[1]) == "a"


async def test_a_failing_request_alone_takes_nobody_out(make) -> None:
    bench = make()
    worker = bench.worker("a")
    for _ in range(20):
        ticket = bench.dispatcher.submit(JOB)
        await bench.settle()
        bench.dispatcher.failed(ticket, Failure.CLIENT)
    assert worker.accepts()


async def test_back_pressure_shrinks_what_is_believed_for_a_while(make) -> None:
    bench = make()
    worker = bench.worker("a", slots=4, kv_tokens=4000)
    tickets = [bench.dispatcher.submit(JOB) for _ in range(4)]
    await bench.settle()
    bench.dispatcher.failed(tickets[3], Failure.BACK_PRESSURE)
    assert worker.slots_believed(bench.clock()) == 3
    late = bench.dispatcher.submit(JOB)
    assert await bench.where(late) is None
    bench.clock.now_s += PRESSED_S
    assert await bench.where(late) == "a"


async def test_who_waits_without_a_fleet_is_served_when_it_comes(make) -> None:
    bench = make()
    ticket = bench.dispatcher.submit(JOB)
    assert await bench.where(ticket) is None
    bench.worker("a")
    assert await bench.where(ticket) == "a"


async def test_a_fleet_that_changes(make) -> None:
    bench = make()
    bench.worker("a", slots=1)
    bench.worker("small", kv_tokens=60)
    running = bench.dispatcher.submit(JOB)
    waiting = bench.dispatcher.submit(JOB)
    assert await bench.where(running) == "a"
    assert [ticket.id for ticket in bench.dispatcher.members.remove_worker("a")] == [running.id]
    bench.dispatcher.finished(running, None, 3)  # its stream may go on; its lease is closed
    assert bench.leases() == 0
    assert await bench.where(waiting) is None  # it does not fit the small one
    bench.worker("c", slots=4)
    assert await bench.where(waiting) == "c"
    bench.dispatcher.members.drain_worker("c")
    another = bench.dispatcher.submit(Job("m", 40))
    assert await bench.where(another) == "small"
    bench.dispatcher.members.resize_worker("small", 1, 60)
    assert bench.dispatcher.controller.state.fleet.batch_slots[1] == 1
    with pytest.raises(ConfigError, match="'x' is unknown; there are: small, c"):
        bench.dispatcher.roster.worker("x")


async def test_what_runs_on_a_worker_that_joins_is_not_overfilled(make) -> None:
    bench = make()
    bench.dispatcher.members.add_worker(Worker("a", "http://a", batch_slots=3, kv_tokens=1000, foreign_slots=2))
    tickets = [bench.dispatcher.submit(JOB) for _ in range(3)]
    await bench.settle()
    assert [ticket.worker is not None for ticket in tickets].count(True) == 1


async def test_a_worker_that_joins_a_running_fleet_ramps_up(make) -> None:
    bench = make()
    first = bench.worker("a", slots=8)
    assert first.slots_believed(bench.clock()) == 8
    bench.dispatcher.submit(JOB)
    await bench.settle()
    second = bench.worker("b", slots=8)
    assert second.slots_believed(bench.clock()) == 2
    bench.clock.now_s += RAMP_S
    assert second.slots_believed(bench.clock()) == 8


async def test_what_fits_a_worker_at_its_full_size_waits_until_it_has_that_again(make) -> None:
    bench = make()
    worker, small = bench.worker("a", kv_tokens=1000), bench.worker("b", kv_tokens=100)
    worker.foreign_kv_tokens = 900
    bench.dispatcher.members.fit_capacities()
    ticket = bench.dispatcher.submit(Job("m", 10, prompt_tokens=500))
    estimated = bench.dispatcher.submit(Job("m", 2000))
    assert await bench.where(ticket) is None
    worker.foreign_kv_tokens = 0
    assert await bench.where(ticket) == "a"
    assert estimated.prompt_tokens == 500
    bench.dispatcher.members.worker_dead(worker, "gone")
    late = bench.dispatcher.submit(Job("m", 10, prompt_tokens=500))  # it fits a worker that is out
    assert await bench.where(late) is None
    assert bench.dispatcher.workers["b"] is small


async def test_a_late_success_does_not_call_back_a_worker_that_is_out(make) -> None:
    bench = make()
    worker = bench.worker("a", slots=4)
    tickets = [bench.dispatcher.submit(JOB) for _ in range(2)]
    await bench.settle()
    bench.dispatcher.members.worker_dead(worker, "refused")
    bench.dispatcher.finished(tickets[0], None, 3)
    assert not worker.accepts()
    bench.clock.now_s += 2.0
    bench.dispatcher.members.worker_alive(worker)
    bench.dispatcher.finished(tickets[1], None, 3)
    assert await bench.where(bench.dispatcher.submit(JOB)) == "a"
    assert bench.dispatcher.controller.state.fleet.accepting() == [0]


async def test_a_new_worker_is_not_sent_more_than_it_has_room_for(make) -> None:
    bench = make()
    tickets = [bench.dispatcher.submit(JOB) for _ in range(6)]
    worker = Worker("a", "http://a", batch_slots=6, kv_tokens=10_000, foreign_slots=4)
    bench.dispatcher.members.add_worker(worker)
    await bench.settle()
    assert sum(ticket.worker is not None for ticket in tickets) == 2


async def test_a_long_queue_that_waited_for_a_worker_is_let_in_by_parts(make) -> None:
    bench = make()
    tickets = [bench.dispatcher.submit(JOB) for _ in range(600)]
    bench.worker("a", slots=1)
    assert len(bench.dispatcher.room.apart) == 600 - READMITTED
    for ticket in tickets[300:]:
        bench.dispatcher.cancelled(ticket)
    async with asyncio.timeout(5.0):  # two ticks, which a busy machine may delay
        while bench.dispatcher.room.to_readmit:
            await asyncio.sleep(TICK_S)
    assert not bench.dispatcher.room.apart
    for ticket in tickets[:300]:
        bench.dispatcher.cancelled(ticket)
    assert bench.leases() == 0
