"""When a request is prefilled, where, and what becomes of its KV: leases on both sides, each closed once."""

from __future__ import annotations

from typing import Any

import pytest

from bidroute.router.prefill_pool import AT_ONCE_TOKENS, LeaseStage
from bidroute.router.prefill_stage import LAST_SHARE, URGENT_SHARE
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.workers import PREFILL, Worker
from tests.router.bench import Bench

SPLIT = Job("m", prompt_bytes=400, can_split=True)
PARAMS = b'{"do_remote_prefill":true}'
LEASE_S = 10.0


def exact(tokens: int, **more: Any) -> Job:
    return Job("m", 0, prompt_tokens=tokens, can_split=True, **more)


class Pair(Bench):
    """A bench with prefill workers too, and what a proxy would do with them."""

    def prefill_worker(self, name: str, slots: int = 4, kv_tokens: int = 2000) -> Worker:
        worker = Worker(name, f"http://{name}", batch_slots=slots, kv_tokens=kv_tokens, role=PREFILL)
        self.dispatcher.prefill.add_worker(worker)
        return worker

    async def sent(self, ticket: Ticket) -> str | None:
        """The prefill worker that has it, None while it waits for one."""
        self.dispatcher._prompt()
        await self.settle()
        lease = ticket.prefill
        return lease.worker.name if lease is not None and lease.stage is LeaseStage.SENT else None

    async def prefilled(self, ticket: Ticket, tokens: int | None = None) -> None:
        """Its prefill worker is done."""
        assert await self.sent(ticket) is not None
        self.dispatcher.prefilled(ticket, PARAMS, tokens)
        await self.settle()

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.dispatcher._tick()

    def counts(self) -> dict[str, int]:
        pool = self.dispatcher.prefill.pool
        return {stage.value: pool.total(stage)[0] for stage in LeaseStage if pool.total(stage)[0]}


@pytest.fixture
async def pair(make) -> Pair:
    bench = make(kv_lease_s=LEASE_S)
    made = Pair(bench.dispatcher, bench.clock)
    made.worker("a", slots=2)
    made.prefill_worker("p")
    return made


def stage(ticket: Ticket) -> LeaseStage | None:
    return ticket.prefill.stage if ticket.prefill is not None else None


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


async def occupied(pair: Pair, slots: int = 2) -> list[Ticket]:
    """The free slots of the decode worker are taken, by requests that need no prefill worker."""
    tickets = [pair.dispatcher.submit(Job("m", 40)) for _ in range(slots)]
    await pair.settle()
    assert pair.leases() == 2
    return tickets


async def waiting(pair: Pair, job: Job = SPLIT) -> tuple[Ticket, list[Ticket]]:
    """A prefilled request that waits, and those that occupy the decode worker."""
    others = await occupied(pair)
    ticket = pair.dispatcher.submit(job)
    await pair.prefilled(ticket)
    assert stage(ticket) is LeaseStage.WAITING
    return ticket, others


@pytest.mark.parametrize("when", ["in line", "sent", "waiting", "handed", "started"])
async def test_a_client_may_leave_at_any_point(pair: Pair, when: str) -> None:
    others: list[Ticket] = []
    if when == "waiting":
        ticket, others = await waiting(pair)
    else:
        if when == "in line":
            pair.dispatcher.drain_worker("a")
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


async def test_kv_that_runs_out_goes_first_and_then_is_made_anew(make) -> None:
    bench = make(kv_lease_s=LEASE_S, policy="fifo")
    pair = Pair(bench.dispatcher, bench.clock)
    pair.worker("a", slots=2)
    pair.prefill_worker("p")
    others = await occupied(pair)
    ahead = pair.dispatcher.submit(Job("m", 40))  # by the policy's order the next, and without a lease
    ticket = pair.dispatcher.submit(SPLIT)
    await pair.prefilled(ticket)
    pair.pass_time(URGENT_SHARE * LEASE_S - 0.1)
    assert ticket.id not in pair.dispatcher.room.by_load
    pair.pass_time(0.2)
    assert ticket.id in pair.dispatcher.room.by_load
    pair.dispatcher.finished(others[0], None, 3)
    assert await pair.where(ticket) == "a"
    assert ahead.worker is None
    assert stage(ticket) is LeaseStage.HANDED


async def test_kv_that_would_come_too_late_is_never_sent(pair: Pair) -> None:
    ticket, others = await waiting(pair)
    first = ticket.prefill
    pair.pass_time(LAST_SHARE * LEASE_S + 0.1)
    assert stage(ticket) is None
    assert first is not None
    assert first.stage is LeaseStage.ABANDONED  # it occupies the worker still
    assert await pair.sent(ticket) is None  # the next time it waits until somebody would take it
    pair.dispatcher.finished(others[0], None, 3)
    assert await pair.sent(ticket) == "p"
    pair.dispatcher.prefilled(ticket, PARAMS, None)
    assert await pair.where(ticket) == "a"
    assert ticket.prefill is not first
    assert 'prefilled_again_total{reason="lease"} 1.0' in pair.dispatcher.metrics.render().decode()
    (step, *_, last) = pair.dispatcher.prefill.steps(str(ticket.id))
    assert (step.status, last.status) == ("prefilled", "handed over")


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
    pair.dispatcher.resize_worker("a", 2, 9000)
    with pytest.raises(RefusedError, match="largest prefill worker holds 2000"):
        pair.dispatcher.submit(exact(5000))
    ticket = pair.dispatcher.submit(Job("m", 40_000, can_split=True))  # an estimate refuses nobody
    assert await pair.sent(ticket) == "p"


async def test_the_worker_with_the_least_to_do_for_its_speed_is_chosen(pair: Pair) -> None:
    pair.dispatcher.resize_worker("a", 50, 50_000)
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
    pair.dispatcher.resize_worker("a", 50, 500_000)
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
    pair.dispatcher.drain_worker("a")
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


@pytest.mark.parametrize("reached", [True, False])
async def test_kv_is_made_anew_where_a_decode_worker_may_have_fetched_it(pair: Pair, reached: bool) -> None:
    pair.worker("b")
    ticket = pair.dispatcher.submit(SPLIT)
    await pair.prefilled(ticket)
    first = await pair.where(ticket)
    lease = ticket.prefill
    pair.dispatcher.failed(ticket, Failure.FAULT, "reset", reached=reached)
    pair.dispatcher.retry(ticket)
    if reached:
        assert pair.counts()["abandoned"] == 1
        await pair.prefilled(ticket)
    second = await pair.where(ticket)
    assert {first, second} == {"a", "b"}
    assert (ticket.prefill is lease) == (not reached)
    assert stage(ticket) is LeaseStage.HANDED
    pair.dispatcher.failed(ticket, Failure.FAULT, "refused", reached=False)
    await pair.settle()  # no retry: that was its end
    assert pair.counts()["abandoned"] == (2 if reached else 1)
    assert pair.leases() == 0
    pair.pass_time(LEASE_S)
    assert pair.counts() == {}


async def test_kv_that_is_old_is_not_offered_to_the_next_decode_worker(pair: Pair) -> None:
    ticket = pair.dispatcher.submit(SPLIT)
    await pair.prefilled(ticket)
    assert await pair.where(ticket) == "a"
    pair.clock.now_s += LAST_SHARE * LEASE_S + 0.1  # so long it took to find that it cannot be reached
    pair.dispatcher.failed(ticket, Failure.FAULT, "refused", reached=False)
    pair.dispatcher.retry(ticket)
    assert await pair.sent(ticket) == "p"


async def test_a_loop_that_was_held_up_hands_no_old_kv_over(pair: Pair) -> None:
    ticket, others = await waiting(pair)
    pair.clock.now_s += LAST_SHARE * LEASE_S + 0.1  # and no tick came
    pair.dispatcher.finished(others[0], None, 2)
    await pair.settle()
    assert ticket.worker is None
    assert stage(ticket) is LeaseStage.SENT


async def test_a_prefill_that_outlives_its_worker_is_used_in_time_or_not_at_all(pair: Pair) -> None:
    others = await occupied(pair)
    ticket = pair.dispatcher.submit(SPLIT)
    assert await pair.sent(ticket) == "p"
    pair.dispatcher.prefill.remove_worker("p")
    pair.dispatcher.prefilled(ticket, PARAMS, None)
    assert stage(ticket) is LeaseStage.WAITING
    pair.pass_time(LAST_SHARE * LEASE_S + 0.1)
    assert stage(ticket) is None
    pair.dispatcher.finished(others[0], None, 2)
    assert await pair.where(ticket) == "a"


async def test_kv_of_a_worker_that_is_out_is_made_elsewhere(pair: Pair) -> None:
    ticket, others = await waiting(pair)
    pair.prefill_worker("q")
    assert ticket.prefill is not None
    pair.dispatcher.prefill.worker_dead(ticket.prefill.worker, "refused")
    assert await pair.sent(ticket) == "q"
    assert pair.counts() == {"sent": 1}
    pair.dispatcher.prefilled(ticket, PARAMS, None)
    pair.dispatcher.prefill.worker_restarted(pair.dispatcher.prefill.load("q").worker)
    assert await pair.sent(ticket) == "q"
    pair.dispatcher.finished(others[0], None, 2)


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
    pair.dispatcher.drain_worker("a")
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
        pair.dispatcher.estimates.learned(SPLIT, 5)
    pair.dispatcher._tick()
    assert waiting.prompt_tokens < before
    assert (prefilled.prompt_tokens, running.prompt_tokens) == (80, 90)
    for ticket in (running, *blocking):
        pair.dispatcher.finished(ticket, None, 5)
    assert await pair.where(prefilled) == "a"
    await pair.prefilled(waiting, 70)
    assert await pair.where(waiting) == "a"
