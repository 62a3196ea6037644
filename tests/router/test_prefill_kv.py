"""What becomes of KV that waits to be fetched: it is never handed over late, and made anew where it is lost."""

from __future__ import annotations

import pytest

from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.prefill_stage import LAST_SHARE, URGENT_SHARE
from bidroute.router.tickets import Failure, Job
from tests.router.prefill_bench import LEASE_S, PARAMS, SPLIT, Pair, occupied, stage, waiting


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
