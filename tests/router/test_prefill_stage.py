"""When a request is prefilled and where: leases on both sides, each closed once."""

from __future__ import annotations

import pytest

from bidroute.router.prefill_pool import AT_ONCE_TOKENS, LeaseStage
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from tests.router.prefill_bench import LEASE_S, PARAMS, SPLIT, Pair, exact, occupied, waiting


async def test_a_request_is_prefilled_and_then_decoded_and_both_leases_close(pair: Pair) -> None:
    ticket = pair.dispatcher.submit(SPLIT)
    assert await pair.where(ticket) is None
    assert await pair.sent(ticket) == "p"
    assert pair.counts() == {"sent": 1}
    pair.dispatcher.prefilled(ticket, PARAMS, 90)
    assert pair.counts() == {"waiting": 1}
    assert await pair.where(ticket) == "a"
    assert pair.counts() == {"handed": 1}
    fleet = pair.dispatcher.controller.state.fleet
    assert fleet.prefill_tokens.tolist() == [0]  # nothing is left to prefill where it decodes
    assert int(fleet.kv_tokens_used[0]) == 91
    pair.dispatcher.started(ticket)
    assert pair.counts() == {}
    pair.dispatcher.progressed(ticket, 20)
    assert fleet.ledgers[0].decoded_tokens.tolist() == [20]
    pair.dispatcher.finished(ticket, 90, 20)
    assert pair.leases() == 0
    assert not pair.dispatcher.tickets
    assert pair.dispatcher.estimates.of(Job("m", 400)) < 300  # learned from the prefill's answer


@pytest.mark.parametrize("when", ["in line", "sent", "waiting", "handed", "started"])
async def test_a_client_may_leave_at_any_point(pair: Pair, when: str) -> None:
    others: list[Ticket] = []
    if when == "waiting":
        ticket, others = await waiting(pair)
    else:
        if when == "in line":
            pair.dispatcher.members.drain_worker("a")
        ticket = pair.dispatcher.submit(SPLIT)
        if when == "in line":
            assert await pair.sent(ticket) is None
        elif when == "sent":
            assert await pair.sent(ticket) == "p"
        else:
            await pair.prefilled(ticket)
        if when == "started":
            pair.dispatcher.started(ticket)
    pair.dispatcher.cancelled(ticket)
    pair.dispatcher.cancelled(ticket)  # a second ending changes nothing
    assert pair.leases() == len(others)
    assert pair.counts() == ({"abandoned": 1} if when in ("waiting", "handed") else {})
    assert ticket.id not in pair.dispatcher.tickets
    pair.pass_time(LEASE_S)  # KV that nobody fetched is held until then
    assert pair.counts() == {}
    assert not pair.dispatcher.room.for_prefill
    assert pair.dispatcher.totals.cancelled == 1


async def test_the_wait_for_a_prefill_ends_as_any_other(make) -> None:
    bench = make(max_waiting=2)
    pair = Pair(bench.dispatcher, bench.clock)
    pair.worker("a")
    pair.dispatcher.prefill.pool.expected.add("late")
    ticket = pair.dispatcher.submit(exact(50, deadline_s=0.01))
    pair.dispatcher.submit(SPLIT)
    with pytest.raises(RefusedError) as error:
        pair.dispatcher.submit(SPLIT)
    assert error.value.code == "queue_full"
    with pytest.raises(RefusedError) as error:
        await pair.dispatcher.released(ticket)
    assert error.value.code == "waited_too_long"
    pair.prefill_worker("late")
    with pytest.raises(RefusedError) as error:
        pair.dispatcher.submit(exact(5000))
    assert error.value.code == "never_fits"
    assert not pair.dispatcher.prefill.pool.expected


async def test_a_prompt_that_no_prefill_worker_can_hold(pair: Pair) -> None:
    pair.dispatcher.members.resize_worker("a", 2, 9000)
    with pytest.raises(RefusedError, match="largest prefill worker holds 2000"):
        pair.dispatcher.submit(exact(5000))
    ticket = pair.dispatcher.submit(Job("m", 40_000, can_split=True))  # an estimate refuses nobody
    assert await pair.sent(ticket) == "p"


async def test_the_worker_with_the_least_to_do_for_its_speed_is_chosen(pair: Pair) -> None:
    pair.dispatcher.members.resize_worker("a", 50, 50_000)
    pair.pass_time(100.0)
    pair.dispatcher.prefill.resize_worker("p", 8, 20_000)
    pair.prefill_worker("fast", slots=8, kv_tokens=20_000)
    pool = pair.dispatcher.prefill.pool
    for name, seconds in (("p", 1.0), ("fast", 0.25)):
        lease = pool.send(pool.loads[name], 400)
        pair.clock.now_s += seconds
        pool.hold(lease, PARAMS, 400)
        lease.become(LeaseStage.CLOSED)
    assert pool.loads["fast"].tokens_per_s == pytest.approx(1600.0)
    tickets = [pair.dispatcher.submit(exact(400)) for _ in range(5)]
    chosen = [await pair.sent(ticket) for ticket in tickets]
    assert sorted(name for name in chosen if name) == ["fast"] * 4 + ["p"]
    assert pool.loads["p"].to_do_tokens == 400


async def test_a_prefill_worker_is_given_no_more_than_it_can_begin_with_and_hold(pair: Pair) -> None:
    pair.dispatcher.members.resize_worker("a", 50, 500_000)
    pair.pass_time(100.0)
    load = pair.dispatcher.prefill.pool.loads["p"]
    assert load.has_room(2000)
    pool = pair.dispatcher.prefill.pool
    leases = [pool.send(load, 450) for _ in range(4)]
    assert not load.has_room(10)  # its slots
    leases[0].let_go()
    assert load.has_room(450)
    assert not load.has_room(600)  # its KV
    for lease in leases:
        lease.let_go()
    pair.dispatcher.prefill.resize_worker("p", 50, 100_000)
    pool.send(load, AT_ONCE_TOKENS - 10)
    assert load.has_room(10)
    assert not load.has_room(20)  # what it can take into its next iterations
    assert load.to_do_tokens == AT_ONCE_TOKENS - 10


async def test_no_more_is_prefilled_than_decode_workers_take_in_time(pair: Pair) -> None:
    pair.dispatcher.prefill.resize_worker("p", 50, 100_000)
    others = await occupied(pair)
    tickets = [pair.dispatcher.submit(SPLIT) for _ in range(8)]
    assert [await pair.sent(ticket) for ticket in tickets] == ["p"] + [None] * 7
    assert pair.dispatcher.prefill.held_by == "decode"
    pair.dispatcher.finished(others[0], None, 3)
    assert await pair.sent(tickets[1]) == "p"  # one for the slot that is free
    pair.dispatcher.members.drain_worker("a")
    for ticket in tickets:
        pair.dispatcher.cancelled(ticket)
    last = pair.dispatcher.submit(SPLIT)
    assert await pair.sent(last) is None  # nobody would take it


async def test_a_fast_decode_fleet_lets_more_be_prefilled(pair: Pair) -> None:
    pair.dispatcher.prefill.resize_worker("p", 50, 100_000)
    for _ in range(40):  # two a second, for two leases
        ticket = pair.dispatcher.submit(SPLIT)
        await pair.prefilled(ticket)
        pair.dispatcher.finished(ticket, 90, 4)
        pair.clock.now_s += 0.5
    await occupied(pair)
    tickets = [pair.dispatcher.submit(SPLIT) for _ in range(12)]
    sent = [name for name in [await pair.sent(ticket) for ticket in tickets] if name]
    assert 3 <= len(sent) <= 6  # a quarter of a lease at two a second, and the tokens of those


async def test_failures_of_prefill_workers(pair: Pair) -> None:
    pair.prefill_worker("q")
    ticket = pair.dispatcher.submit(SPLIT)
    first = await pair.sent(ticket)
    pair.dispatcher.failed(ticket, Failure.STALLED, "silent")
    assert pair.counts() == {}
    pair.dispatcher.retry(ticket)
    second = await pair.sent(ticket)
    assert {first, second} == {"p", "q"}
    assert not pair.dispatcher.prefill.load(str(first)).worker.accepts()
    pair.dispatcher.failed(ticket, Failure.BACK_PRESSURE, "full")
    pair.dispatcher.retry(ticket)
    assert await pair.sent(ticket) == second  # tried, and the only one there is
    pair.dispatcher.failed(ticket, Failure.CLIENT)
    await pair.settle()
    assert (pair.dispatcher.totals.failed, pair.counts(), pair.leases()) == (1, {}, 0)
    assert pair.dispatcher.prefill.load(str(second)).worker.accepts()
    page = pair.dispatcher.metrics.render().decode()
    assert "prefilled_again_total{" not in page  # no KV was lost


async def test_without_prefill_workers_requests_go_on_without(pair: Pair) -> None:
    ticket, others = await waiting(pair)
    line = pair.dispatcher.submit(SPLIT)
    pair.dispatcher.prefill.remove_worker("p")
    assert not pair.dispatcher.splits
    for other in others:
        pair.dispatcher.finished(other, None, 2)
    assert [await pair.where(one) for one in (ticket, line)] == ["a", "a"]
    assert (ticket.prefill, line.prefill) == (None, None)
    for one in (ticket, line):
        pair.dispatcher.started(one)
        pair.dispatcher.finished(one, None, 2)
    assert pair.leases() == 0


async def test_models_and_priorities_in_line(pair: Pair) -> None:
    p = pair.dispatcher.prefill.load("p").worker
    p.models = frozenset({"m"})
    assert not pair.dispatcher.prefill.wants(Job("other", 1, can_split=True))
    assert not pair.dispatcher.prefill.wants(Job("m", 1))
    other = pair.prefill_worker("q")
    other.models = frozenset({"n"})
    pair.dispatcher.prefill.drain_worker("p")
    blocked = pair.dispatcher.submit(SPLIT)
    passes = pair.dispatcher.submit(Job("n", 40, can_split=True))
    assert await pair.sent(passes) == "q"
    assert await pair.sent(blocked) is None
    assert pair.dispatcher.prefill.held_by == "prefill workers"
    urgent = pair.dispatcher.submit(Job("m", 40, can_split=True, priority=3.0))
    p.draining = False
    pair.dispatcher.prefill.resize_worker("p", 1, 2000)
    assert await pair.sent(urgent) == "p"
    assert await pair.sent(blocked) is None


async def test_the_line_forgets_who_left(pair: Pair) -> None:
    pair.dispatcher.members.drain_worker("a")
    for _ in range(300):
        pair.dispatcher.cancelled(pair.dispatcher.submit(SPLIT))
    assert len(pair.dispatcher.prefill._line) < 50


async def test_a_router_that_stops_refuses_who_is_in_line_or_prefilled(pair: Pair) -> None:
    ticket, _ = await waiting(pair)
    pair.dispatcher.stop()
    with pytest.raises(RefusedError):
        await pair.dispatcher.released(ticket)
    assert pair.counts() == {"abandoned": 1}


async def test_a_calibration_that_moves_finds_each_of_them_wherever_it_is(pair: Pair) -> None:
    """Who waits for a prefill is estimated anew; who is prefilled keeps what its worker counted."""
    running = pair.dispatcher.submit(SPLIT)
    await pair.prefilled(running, 90)
    blocking = await occupied(pair, 1)
    prefilled = pair.dispatcher.submit(SPLIT)
    await pair.prefilled(prefilled, 80)
    waiting = pair.dispatcher.submit(SPLIT)
    assert await pair.sent(waiting) is None
    assert waiting.id in pair.dispatcher.room.for_prefill
    before = waiting.prompt_tokens
    for _ in range(50):
        pair.dispatcher.estimates.learned(waiting, 5)
    pair.dispatcher._tick()
    assert waiting.prompt_tokens < before
    assert (prefilled.prompt_tokens, running.prompt_tokens) == (80, 90)
    for ticket in (running, *blocking):
        pair.dispatcher.finished(ticket, None, 5)
    assert await pair.where(prefilled) == "a"
    await pair.prefilled(waiting, 70)
    assert await pair.where(waiting) == "a"
