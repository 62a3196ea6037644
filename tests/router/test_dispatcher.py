"""What becomes of requests: releases, leases that close once, retries, refusals, counts."""

from __future__ import annotations

import asyncio
import math

import pytest

from bidroute.core.requests import Request
from bidroute.errors import ConfigError
from bidroute.router.tickets import Failure, Job, RefusedError
from tests.router.bench import JOB, Bench


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
    assert bench.dispatcher.estimates.rates.estimate("m", 400) < 100


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


async def test_limits(make) -> None:
    bench = make(max_waiting=1)
    with pytest.raises(ConfigError, match="no workers yet"):
        _ = bench.dispatcher.controller
    first = bench.dispatcher.submit(JOB)  # waits for a fleet
    with pytest.raises(RefusedError) as error:
        bench.dispatcher.submit(JOB)
    assert (error.value.status, error.value.code) == (429, "queue_full")
    bench.worker("a", models="m")
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


async def test_the_time_to_wait_is_kept_when_it_is_long_enough_to_get_its_timer_late(make) -> None:
    bench = make()
    bench.worker("a", slots=1)
    loop = asyncio.get_running_loop()
    bench.dispatcher.clock = bench.dispatcher.room._clock = loop.time
    bench.dispatcher.submit(JOB)
    ticket = bench.dispatcher.submit(Job("m", 400, deadline_s=0.3))
    before_s = loop.time()
    with pytest.raises(RefusedError):
        await bench.dispatcher.released(ticket)
    assert 0.29 <= loop.time() - before_s < 2.0


@pytest.mark.parametrize(
    ("slots", "update_s", "updates"), [(8, 0.25, 2), (1, 0.25, 13), (1, math.inf, 1)], ids=["room", "queue", "never"]
)
async def test_prices_are_updated_seldom_while_nobody_has_to_wait(make, slots, update_s, updates) -> None:
    bench = make(update_s=update_s)
    bench.worker("a", slots=slots)
    await bench.where(bench.dispatcher.submit(JOB))
    bench.dispatcher.submit(JOB)
    seen = []
    bench.dispatcher.controller.update = lambda now_s: seen.append(now_s)
    for _ in range(39):  # 3.9 seconds
        bench.clock.now_s += 0.1
        ticket = bench.dispatcher.submit(JOB)
        await bench.where(ticket)
        bench.dispatcher.cancelled(ticket)
    assert len(seen) == pytest.approx(updates, abs=1)


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
    bench.worker("a"), bench.worker("b", slots=1)
    retried, lost, left = (bench.dispatcher.submit(JOB) for _ in range(3))
    await bench.settle()
    refused = bench.dispatcher.submit(JOB)
    assert await bench.where(refused) is None
    bench.dispatcher.room.refuse(refused.id, RefusedError(503, "waited_too_long", "x"))
    bench.dispatcher.failed(retried, Failure.FAULT)
    bench.dispatcher.retry(retried)
    bench.dispatcher.failed(lost, Failure.FAULT)
    bench.dispatcher.cancelled(left)
    assert await bench.where(retried) is not None
    bench.dispatcher.finished(retried, None, 3)
    bench.dispatcher.finished(refused, None, 3)  # it has ended already
    await bench.settle()
    assert totals(bench) == (4, 1, 1, 1, 1)
    assert (bench.dispatcher.totals.failed, bench.dispatcher.totals.retries) == (1, 1)


async def test_a_stream_of_a_removed_worker_counts_when_it_ends(make) -> None:
    bench = make()
    bench.worker("a")
    tickets = [bench.dispatcher.submit(JOB) for _ in range(2)]
    await bench.settle()
    bench.dispatcher.members.remove_worker("a")
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
    bench.worker("b", models="other")
    bench.dispatcher.failed(ticket, Failure.FAULT)
    bench.dispatcher.retry(ticket)
    assert await bench.where(ticket) == "a"


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
