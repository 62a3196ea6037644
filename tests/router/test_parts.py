"""Several models: a request only goes where its model is served, and one model's queue holds up no other's."""

from __future__ import annotations

import asyncio

import pytest

from bidroute.policies import PolicySettings, build_policy
from bidroute.router.tickets import Failure, Job, Ticket
from tests.router.bench import Bench
from tests.soak.live import LiveWorker, leaks, routed, until


def submit(bench: Bench, model: str, count: int = 1) -> list[Ticket]:
    bench.dispatcher.estimates.told({model}, 0.2)
    return [bench.dispatcher.submit(Job(model, 400)) for _ in range(count)]


def placed(tickets: list[Ticket]) -> dict[str, int]:
    names = [ticket.worker.name for ticket in tickets if ticket.worker]
    return {name: names.count(name) for name in names}


def controllers(bench: Bench) -> int:
    return len(bench.dispatcher.roster.controllers())


@pytest.mark.parametrize("policy", ["bid_price", "fifo+safety", "round_robin", "join_shortest_queue"])
async def test_every_policy_sends_only_where_the_model_is_served(make, policy: str) -> None:
    bench = make(policy=policy)
    bench.worker("x1", models="x"), bench.worker("y1", models="y"), bench.worker("x2", models="x")
    xs, ys = submit(bench, "x", 8), submit(bench, "y", 3)
    await bench.settle()
    assert set(placed(xs)) == {"x1", "x2"}
    assert set(placed(ys)) == {"y1"}
    assert controllers(bench) == 3
    for ticket in xs + ys:
        bench.dispatcher.cancelled(ticket)
    assert bench.leases() == 0


async def test_one_models_full_fleet_holds_up_no_other(make) -> None:
    bench = make()
    bench.worker("x", slots=1, models="x"), bench.worker("y", slots=4, models="y")
    xs = submit(bench, "x", 200)
    await bench.settle()
    for k in range(20):
        bench.clock.now_s += 0.3
        (ticket,) = submit(bench, "y")
        assert await bench.where(ticket) == "y", k
        bench.dispatcher.finished(ticket, None, 5)
    assert placed(xs) == {"x": 1}
    xs_prices = bench.dispatcher.roster.prices_on(bench.dispatcher.workers["x"])
    ys_prices = bench.dispatcher.roster.prices_on(bench.dispatcher.workers["y"])
    assert xs_prices.slot_price[0].max() > 0.0
    assert ys_prices.slot_price[1].max() == pytest.approx(0.0, abs=1e-6)
    assert sum(bench.dispatcher.held.values()) == 199


async def test_a_worker_of_two_models_is_shared_and_not_overfilled(make) -> None:
    bench = make()
    bench.worker("x", slots=2, kv_tokens=4000, models="x"), bench.worker("both", slots=4, kv_tokens=4000, models="x y")
    xs, ys, ended = submit(bench, "x", 30), submit(bench, "y", 30), []
    for _ in range(6):
        await bench.where(ys[-1])
        assert placed(ys).keys() <= {"both"}
        assert placed(xs)["x"] == 2
        assert placed(xs).get("both", 0) + placed(ys).get("both", 0) == 4
        now = [ticket for ticket in [*xs, *ys] if ticket.worker]
        for ticket in now:
            bench.dispatcher.finished(ticket, None, 3)
        ended += now
    assert any(ticket in ended for ticket in ys)  # either has its turn


async def test_models_that_are_served_alike_share_a_queue(make) -> None:
    bench = make()
    bench.worker("a", models="base lora1 lora2"), bench.worker("b", models="base lora1 lora2")
    submit(bench, "base"), submit(bench, "lora1"), submit(bench, "")
    await bench.settle()
    assert controllers(bench) == 1
    bench.worker("c", models="other")
    submit(bench, "base"), submit(bench, "lora2"), submit(bench, "other")
    await bench.settle()
    assert controllers(bench) == 3


async def test_who_waits_moves_when_workers_come_and_go(make) -> None:
    bench = make()
    bench.worker("x1", slots=1, models="x")
    xs = submit(bench, "x", 4)
    await bench.settle()
    assert (placed(xs), controllers(bench)) == ({"x1": 1}, 1)
    bench.worker("y", slots=9, models="y")
    await bench.where(xs[0])
    assert placed(xs) == {"x1": 1}  # the rest waits in a queue of its own now
    part = bench.dispatcher.controller_of(xs[0])
    assert len(part.state.queue) == 3
    bench.worker("x2", slots=1, models="x")
    bench.clock.now_s += 10.0
    await bench.where(xs[0])
    assert placed(xs) == {"x1": 1, "x2": 1}
    assert bench.dispatcher.controller_of(xs[0]) is part  # with all that it has learned
    bench.dispatcher.members.remove_worker("y")
    await bench.where(xs[0])
    assert bench.dispatcher.controller_of(xs[0]) is bench.dispatcher.controller
    assert len(bench.dispatcher.controller.state.queue) == 2
    bench.dispatcher.cancelled(next(ticket for ticket in xs if not ticket.worker))
    bench.dispatcher.members.drain_worker("x1")
    bench.dispatcher.members.resize_worker("x2", 3, 1000)
    await bench.where(xs[0])
    assert placed(xs)["x2"] == 2


async def test_a_model_that_nobody_serves_any_more_waits_for_one_who_does(make) -> None:
    bench = make()
    bench.worker("x", slots=1, models="x"), bench.worker("y", models="y")
    xs = submit(bench, "x", 2)
    await bench.settle()
    gone = bench.dispatcher.members.remove_worker("x")
    waiting = next(ticket for ticket in xs if ticket not in gone)
    assert await bench.where(waiting) is None
    bench.worker("x", models="x")
    assert await bench.where(waiting) == "x"


async def test_a_failed_decision_for_one_model_leaves_the_others_alone(make, monkeypatch) -> None:
    bench = make()
    bench.worker("x", models="x"), bench.worker("y", models="y")
    (first,) = submit(bench, "x")
    await bench.settle()
    monkeypatch.setattr(bench.dispatcher.controller_of(first), "decide", lambda *_: 1 / 0)
    (bad,), (good,) = submit(bench, "x"), submit(bench, "y")
    assert await bench.where(good) == "y"
    assert await bench.where(bad) == "x"  # by load


async def test_policy_and_objective_are_those_of_all_parts(make) -> None:
    bench = make()
    bench.worker("x", slots=1, models="x"), bench.worker("y", models="y")
    xs = submit(bench, "x", 3)
    await bench.settle()
    bench.dispatcher.set_policy(lambda: build_policy("fifo", PolicySettings(0)))
    assert {policy.name for policy in bench.dispatcher.roster.policies()} == {"fifo"}
    submit(bench, "y")
    await bench.settle()
    assert len(bench.dispatcher.roster.policies()) == 3
    assert {policy.name for policy in bench.dispatcher.roster.policies()} == {"fifo"}
    running = next(ticket for ticket in xs if ticket.worker)
    bench.dispatcher.failed(running, Failure.FAULT)
    await bench.settle()
    assert placed(xs) == {"x": 1}


async def test_several_models_live() -> None:
    fleet = [
        LiveWorker("x1", model="x", batch_slots=2, latency="affine:0.05,0,0"),
        LiveWorker("x2", model="x", batch_slots=3, latency="affine:0.06,0,0"),
        LiveWorker("y", model="y", batch_slots=8),
    ]
    for worker in fleet:
        await worker.start()
    async with routed(fleet, http={"answer_timeout_s": 60.0, "first_byte_timeout_s": 60.0}) as router:
        await until(lambda: len(router.dispatcher.workers) == 3)
        xs = [asyncio.create_task(router.ask(20, model="x", stream=k % 4 > 0)) for k in range(30)]
        await until(lambda: router.state().queue.waiting > 20)
        loop, slowest_s = asyncio.get_running_loop(), 0.0
        for _ in range(10):
            began_s = loop.time()
            outcome = await router.ask(5, model="y")
            slowest_s = max(slowest_s, loop.time() - began_s)
            assert (outcome.kind, outcome.worker) == ("whole", "y")
        assert not all(one.done() for one in xs)
        assert slowest_s < 3.0  # x's wait for twice as long
        assert {(await one).kind for one in xs} == {"whole"}
        assert {one.result().worker for one in xs} == {"x1", "x2"}
        assert (await router.ask(5, model="z")).detail == "404 model_not_found"
        await until(lambda: not leaks(router.dispatcher))
