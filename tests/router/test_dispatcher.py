"""The dispatcher on a clock of its own: releases, leases that close once, retries, breakers, fleets that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from bidroute.core.requests import Request
from bidroute.errors import ConfigError
from bidroute.router.dispatcher import TICK_S, Dispatcher
from bidroute.router.settings import RouterSettings
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.waiting_room import READMITTED
from bidroute.router.workers import PRESSED_S, RAMP_S, Worker

JOB = Job("m", prompt_bytes=400)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A dispatcher, and what a proxy would do with it."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self.dispatcher, self.clock = dispatcher, clock

    def worker(self, name: str, slots: int = 2, kv_tokens: int = 1000) -> Worker:
        worker = Worker(name, f"http://{name}", batch_slots=slots, kv_tokens=kv_tokens)
        self.dispatcher.add_worker(worker)
        return worker

    async def where(self, ticket: Ticket) -> str | None:
        """The worker it is released to, None while it waits."""
        if self.dispatcher.workers:
            self.dispatcher._fit_capacities()
        self.dispatcher._prompt()
        await self.settle()
        return ticket.worker.name if ticket.worker else None

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    def leases(self) -> int:
        return int(self.dispatcher.controller.state.fleet.open_leases.sum())


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Dispatcher] = []

    def build(**settings: object) -> Bench:
        clock = Clock()
        made.append(Dispatcher(RouterSettings(**{"updates_off_loop": False, **settings}), clock))  # type: ignore[arg-type]
        made[-1].start()
        return Bench(made[-1], clock)

    yield build
    for dispatcher in made:
        dispatcher.stop()


async def test_a_request_goes_where_there_is_room_and_waits_where_there_is_none(make) -> None:
    bench = make()
    bench.worker("a", slots=1)
    first, second = bench.dispatcher.submit(JOB), bench.dispatcher.submit(JOB)
    assert await bench.where(first) == "a"
    assert await bench.where(second) is None
    bench.dispatcher.started(first)
    bench.dispatcher.progressed(first, 20)
    assert bench.dispatcher.controller.state.fleet.ledgers[0].decoded_tokens.tolist() == [20]
    bench.dispatcher.finished(first, 90, 20)
    assert await bench.where(second) == "a"
    assert bench.dispatcher.prompt_tokens.estimate("m", 400) < 100


@pytest.mark.parametrize("policy", ["bid_price", "fifo+safety", "round_robin", "join_shortest_queue"])
async def test_every_policy_leaves_no_lease_behind(make, policy: str) -> None:
    bench = make(policy=policy)
    bench.worker("a"), bench.worker("b")
    tickets = [bench.dispatcher.submit(JOB) for _ in range(6)]
    await bench.settle()
    for k, ticket in enumerate(tickets):
        if ticket.worker is None or k % 3 == 0:
            bench.dispatcher.cancelled(ticket)
        elif k % 3 == 1:
            bench.dispatcher.finished(ticket, None, 5)
        else:
            bench.dispatcher.failed(ticket, Failure.CLIENT)
        bench.dispatcher.cancelled(ticket)  # a second ending changes nothing
        bench.dispatcher.finished(ticket, None, 5)
    assert bench.leases() == 0
    assert not bench.dispatcher.tickets
    assert not bench.dispatcher.room.waiting


async def test_a_retry_avoids_the_worker_that_failed_and_keeps_its_place_in_time(make) -> None:
    bench = make()
    bench.worker("a", slots=8), bench.worker("b")
    ticket = bench.dispatcher.submit(JOB)
    assert await bench.where(ticket) == "a"
    arrival_s = ticket.arrival_s
    bench.clock.now_s += 3.0
    bench.dispatcher.failed(ticket, Failure.FAULT, "reset")
    assert bench.leases() == 0
    bench.dispatcher.retry(ticket)
    assert await bench.where(ticket) == "b"
    assert (ticket.attempts, ticket.arrival_s) == (["a", "b"], arrival_s)
    bench.dispatcher.failed(ticket, Failure.FAULT, "reset")
    bench.dispatcher.retry(ticket)  # both were tried: any of them will do
    assert await bench.where(ticket) is not None
    bench.dispatcher.finished(ticket, None, 1)
    assert bench.leases() == 0


async def test_a_hang_takes_a_worker_out_until_it_answers_and_serves_one(make) -> None:
    bench = make()
    worker = bench.worker("a", slots=4)
    ticket = bench.dispatcher.submit(JOB)
    await bench.settle()
    bench.dispatcher.failed(ticket, Failure.STALLED)
    waiting = [bench.dispatcher.submit(JOB) for _ in range(3)]
    bench.dispatcher.worker_alive(worker)  # too early
    assert await bench.where(waiting[0]) is None
    bench.clock.now_s += 2.0
    bench.dispatcher.worker_alive(worker)
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
    worker = bench.worker("a", slots=4)
    tickets = [bench.dispatcher.submit(JOB) for _ in range(4)]
    await bench.settle()
    bench.dispatcher.failed(tickets[3], Failure.BACK_PRESSURE)
    assert worker.slots_believed(bench.clock()) == 3
    late = bench.dispatcher.submit(JOB)
    assert await bench.where(late) is None
    bench.clock.now_s += PRESSED_S
    assert await bench.where(late) == "a"


async def test_limits(make) -> None:
    bench = make(max_waiting=1)
    with pytest.raises(ConfigError, match="no workers yet"):
        _ = bench.dispatcher.controller
    first = bench.dispatcher.submit(JOB)  # waits for a fleet
    with pytest.raises(RefusedError) as error:
        bench.dispatcher.submit(JOB)
    assert (error.value.status, error.value.code) == (429, "queue_full")
    worker = bench.worker("a")
    worker.models = frozenset({"m"})
    await bench.settle()
    with pytest.raises(RefusedError) as error:
        bench.dispatcher.submit(Job("other", 10))
    assert error.value.code == "model_not_found"
    with pytest.raises(RefusedError) as error:
        bench.dispatcher.submit(Job("m", 10, prompt_tokens=5000))
    assert error.value.code == "never_fits"
    bench.dispatcher.finished(first, None, 3)
    assert await bench.where(bench.dispatcher.submit(Job("m", 40_000))) == "a"  # an estimate refuses nobody


async def test_a_deadline_ends_the_wait(make) -> None:
    bench = make()
    bench.worker("a", slots=1)
    bench.dispatcher.submit(JOB)
    ticket = bench.dispatcher.submit(Job("m", 400, deadline_s=0.01))
    with pytest.raises(RefusedError) as error:
        await bench.dispatcher.released(ticket)
    assert error.value.code == "waited_too_long"
    assert error.value.retry_after_s >= 1.0
    assert ticket.id not in bench.dispatcher.tickets


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
    assert [ticket.id for ticket in bench.dispatcher.remove_worker("a")] == [running.id]
    bench.dispatcher.finished(running, None, 3)  # its stream may go on; its lease is closed
    assert bench.leases() == 0
    assert await bench.where(waiting) is None  # it does not fit the small one
    bench.worker("c", slots=4)
    assert await bench.where(waiting) == "c"
    bench.dispatcher.drain_worker("c")
    another = bench.dispatcher.submit(Job("m", 40))
    assert await bench.where(another) == "small"
    bench.dispatcher.resize_worker("small", 1, 60)
    assert bench.dispatcher.controller.state.fleet.batch_slots[1] == 1
    with pytest.raises(ConfigError, match="'x' is unknown; there are: small, c"):
        bench.dispatcher.worker("x")


async def test_what_runs_on_a_worker_that_joins_is_not_overfilled(make) -> None:
    bench = make()
    bench.dispatcher.add_worker(Worker("a", "http://a", batch_slots=3, kv_tokens=1000, foreign_slots=2))
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


async def test_prices_move_beside_the_loop_while_it_decides(make) -> None:
    bench = make(updates_off_loop=True)
    bench.worker("a", slots=2), bench.worker("b", slots=3)
    waiting = [bench.dispatcher.submit(Job("m", 100 + 37 * k % 500, max_tokens=5 + k % 9)) for k in range(60)]
    updates = 0
    while waiting:
        bench.clock.now_s += 0.1
        bench.dispatcher._prompt()
        await bench.settle()
        if bench.dispatcher._updates.running is not None:
            await bench.dispatcher._updates.running
            updates += 1
        for ticket in [ticket for ticket in waiting if ticket.worker is not None]:
            waiting.remove(ticket)
            bench.dispatcher.started(ticket)
            bench.dispatcher.finished(ticket, None, ticket.job.max_tokens)
    assert updates > 5
    prices = bench.dispatcher.policy.prices()
    assert prices is not None
    assert prices.slot_price.shape[0] == 2
    assert bench.leases() == 0
    assert bench.dispatcher.controller.state.lengths.finished.sum() == 60


async def test_prices_fall_again_when_nobody_waits(make) -> None:
    bench = make(updates_off_loop=False)
    bench.worker("a", slots=1)
    for _ in range(40):
        bench.dispatcher.submit(JOB)
    for _ in range(20):
        bench.clock.now_s += 0.3
        bench.dispatcher._prompt()
        await bench.settle()
    assert bench.dispatcher.policy.prices().slot_price.max() > 0.0
    for ticket in list(bench.dispatcher.tickets.values()):
        bench.dispatcher.cancelled(ticket)
    for _ in range(20):
        bench.clock.now_s += 30.0  # and nobody comes: the forecast is of fewer and fewer
        bench.dispatcher._tick()
    assert bench.dispatcher.policy.prices().slot_price.max() == pytest.approx(0.0, abs=1e-6)


def totals(bench: Bench) -> tuple[int, int, int, int, int]:
    counts = bench.dispatcher.totals
    return counts.requests, counts.finished, counts.cancelled, counts.failed, counts.refused


async def test_every_request_counts_once_however_often_it_is_tried(make) -> None:
    bench = make()
    bench.worker("a"), bench.worker("b")
    retried, lost, left, refused = (bench.dispatcher.submit(JOB) for _ in range(4))
    await bench.settle()
    bench.dispatcher.failed(retried, Failure.FAULT)
    bench.dispatcher.retry(retried)
    bench.dispatcher.failed(lost, Failure.FAULT)
    bench.dispatcher.cancelled(left)
    bench.dispatcher.room.refuse(
        refused.id, RefusedError(503, "waited_too_long", "x")
    ) if refused.worker is None else None
    assert await bench.where(retried) is not None
    bench.dispatcher.finished(retried, None, 3)
    bench.dispatcher.finished(refused, None, 3)
    await bench.settle()
    requests, *ends = totals(bench)
    assert requests == 4 == sum(ends)
    assert (bench.dispatcher.totals.failed, bench.dispatcher.totals.retries) == (1, 1)


async def test_a_stream_of_a_removed_worker_counts_when_it_ends(make) -> None:
    bench = make()
    bench.worker("a")
    tickets = [bench.dispatcher.submit(JOB) for _ in range(2)]
    await bench.settle()
    bench.dispatcher.remove_worker("a")
    assert not any(bench.dispatcher.waits(ticket) for ticket in tickets)
    bench.dispatcher.finished(tickets[0], 90, 7)
    bench.dispatcher.failed(tickets[1], Failure.FAULT)
    await bench.settle()
    assert totals(bench) == (2, 1, 0, 1, 0)
    assert bench.dispatcher.totals.output_tokens == 7
    assert not bench.dispatcher.tickets


async def test_who_leaves_in_the_moment_of_release_leaves_no_lease(make) -> None:
    bench = make()
    bench.worker("a", slots=1)
    ticket = bench.dispatcher.submit(JOB)
    client = asyncio.ensure_future(bench.dispatcher.released(ticket))
    await asyncio.sleep(0)
    client.cancel()  # its future is cancelled, and it has not run yet to say so
    await bench.settle()
    bench.dispatcher.cancelled(ticket)
    assert (bench.leases(), totals(bench)) == (0, (1, 0, 1, 0, 0))
    late = bench.dispatcher.submit(JOB)
    client = asyncio.ensure_future(bench.dispatcher.released(late))
    while late.worker is None:
        await asyncio.sleep(0)
    client.cancel()  # released, and has not run yet to hear of it
    await bench.settle()
    bench.dispatcher.cancelled(late)
    assert (bench.leases(), totals(bench)) == (0, (2, 0, 2, 0, 0))


async def test_a_policy_that_fails_does_not_stop_the_decisions(make, monkeypatch, caplog) -> None:
    bench = make()
    bench.worker("a"), bench.worker("b")
    decide = bench.dispatcher.controller.decide

    def fails(now_s: float, ready: list[int]) -> object:
        decide(now_s, ready)  # leases are open by then
        raise ValueError("a mistake")

    monkeypatch.setattr(bench.dispatcher.controller, "decide", fails)
    tickets = [bench.dispatcher.submit(JOB) for _ in range(4)]
    for _ in range(5):
        bench.dispatcher._prompt()
        await bench.settle()
    assert {ticket.worker.name for ticket in tickets if ticket.worker} == {"a", "b"}
    assert all(ticket.worker for ticket in tickets)
    assert "a decision failed" in caplog.text
    for ticket in tickets:
        bench.dispatcher.finished(ticket, None, 2)
    assert bench.leases() == 0


async def test_a_request_that_cannot_be_sent_is_refused_alone(make, monkeypatch) -> None:
    bench = make()
    bench.worker("a", slots=4), bench.worker("b", slots=4)
    bad, good = bench.dispatcher.submit(JOB), bench.dispatcher.submit(JOB)
    await bench.settle()
    for ticket in (bad, good):
        bench.dispatcher.failed(ticket, Failure.FAULT)
        bench.dispatcher.retry(ticket)
    opens = bench.dispatcher.controller.state.fleet.open

    def fails(request: Request, *rest: int) -> None:
        if request.id == bad.id:
            raise ValueError("a mistake")
        opens(request, *rest)

    monkeypatch.setattr(bench.dispatcher.controller.state.fleet, "open", fails)
    waiting = asyncio.ensure_future(bench.dispatcher.released(bad))
    assert await bench.where(good) is not None
    with pytest.raises(RefusedError, match="the router failed"):
        await waiting


async def test_what_fits_a_worker_at_its_full_size_waits_until_it_has_that_again(make) -> None:
    bench = make()
    worker, small = bench.worker("a", kv_tokens=1000), bench.worker("b", kv_tokens=100)
    worker.foreign_kv_tokens = 900
    bench.dispatcher._fit_capacities()
    ticket = bench.dispatcher.submit(Job("m", 10, prompt_tokens=500))
    estimated = bench.dispatcher.submit(Job("m", 2000))
    assert await bench.where(ticket) is None
    worker.foreign_kv_tokens = 0
    assert await bench.where(ticket) == "a"
    assert estimated.prompt_tokens == 500
    bench.dispatcher.worker_dead(worker, "gone")
    late = bench.dispatcher.submit(Job("m", 10, prompt_tokens=500))  # it fits a worker that is out
    assert await bench.where(late) is None
    assert bench.dispatcher.workers["b"] is small


async def test_a_retry_fits_where_it_needs_almost_all(make) -> None:
    bench = make()
    bench.worker("a", kv_tokens=1000), bench.worker("b", kv_tokens=1000)
    ticket = bench.dispatcher.submit(Job("m", 10, prompt_tokens=980))
    first = await bench.where(ticket)
    bench.dispatcher.failed(ticket, Failure.FAULT)
    bench.dispatcher.retry(ticket)
    assert {first, await bench.where(ticket)} == {"a", "b"}


async def test_a_retry_stays_with_workers_of_its_model(make) -> None:
    bench = make()
    bench.worker("a", slots=8)
    ticket = bench.dispatcher.submit(JOB)
    await bench.settle()
    bench.worker("b").models = frozenset({"other"})
    bench.dispatcher.failed(ticket, Failure.FAULT)
    bench.dispatcher.retry(ticket)
    assert await bench.where(ticket) == "a"


async def test_a_late_success_does_not_call_back_a_worker_that_is_out(make) -> None:
    bench = make()
    worker = bench.worker("a", slots=4)
    tickets = [bench.dispatcher.submit(JOB) for _ in range(2)]
    await bench.settle()
    bench.dispatcher.worker_dead(worker, "refused")
    bench.dispatcher.finished(tickets[0], None, 3)
    assert not worker.accepts()
    bench.clock.now_s += 2.0
    bench.dispatcher.worker_alive(worker)
    bench.dispatcher.finished(tickets[1], None, 3)
    assert await bench.where(bench.dispatcher.submit(JOB)) == "a"
    assert bench.dispatcher.controller.state.fleet.accepting() == [0]


async def test_a_new_worker_is_not_sent_more_than_it_has_room_for(make) -> None:
    bench = make()
    tickets = [bench.dispatcher.submit(JOB) for _ in range(6)]
    worker = Worker("a", "http://a", batch_slots=6, kv_tokens=10_000, foreign_slots=4)
    bench.dispatcher.add_worker(worker)
    await bench.settle()
    assert sum(ticket.worker is not None for ticket in tickets) == 2


async def test_a_retry_while_the_router_stops_is_refused(make) -> None:
    bench = make()
    bench.worker("a")
    ticket = bench.dispatcher.submit(JOB)
    await bench.settle()
    bench.dispatcher.failed(ticket, Failure.FAULT)
    bench.dispatcher.draining = True
    bench.dispatcher.retry(ticket)
    with pytest.raises(RefusedError, match="shutting down"):
        await asyncio.wait_for(bench.dispatcher.released(ticket), 1.0)


async def test_one_request_id_again_and_again_is_not_remembered_without_end(make) -> None:
    bench = make()
    bench.worker("a")
    for _ in range(40):
        ticket = bench.dispatcher.submit(Job("m", 400, request_id="same"))
        await bench.settle()
        bench.dispatcher.finished(ticket, None, 1)
    assert 0 < len(bench.dispatcher.log.of("same")) < 40


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
