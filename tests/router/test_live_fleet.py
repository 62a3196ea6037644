"""The live router whole, in front of real workers: it finds out, watches, obeys its operator, says what it does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bidroute.router.breaker import BreakerState
from tests.soak.live import LiveWorker, Outcome, Routed, leaks, routed, until

SLOW: dict[str, Any] = {"latency": "affine:0.05,0,0"}


async def start(*workers: LiveWorker) -> list[LiveWorker]:
    for worker in workers:
        await worker.start()
    return list(workers)


def slots(router: Routed, name: str) -> int:
    return router.worker_state(name).slots_total


async def joined(router: Routed, *names: str) -> None:
    await until(lambda: all(name in router.dispatcher.workers for name in names))


async def ended(router: Routed, asked: list[asyncio.Task[Outcome]]) -> list[str]:
    """How these requests ended; nothing may be left of them."""
    outcomes = [await client for client in asked]
    await until(lambda: not leaks(router.dispatcher))
    return [outcome.kind for outcome in outcomes]


def ask(router: Routed, count: int, tokens: int, **how: Any) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(router.ask(tokens, **how)) for _ in range(count)]


async def test_workers_are_found_out_about_and_shown() -> None:
    a, b = await start(LiveWorker("a", batch_slots=3, kv_tokens=640), LiveWorker("b", batch_slots=5, block_size=32))
    async with routed([a, b]) as router:
        await joined(router, "a", "b")
        assert await ended(router, ask(router, 20, 5) + ask(router, 5, 5, stream=False)) == ["whole"] * 25
        status, state = await router.admin("GET", "/admin/state")
        shown = {worker["name"]: worker for worker in state["workers"]}
        assert status == 200
        assert (shown["a"]["slots_total"], shown["a"]["kv_total"], shown["b"]["slots_total"]) == (3, 640, 5)
        assert {worker["status"] for worker in shown.values()} == {"ready"}
        assert shown["a"]["kind"] == "vllm"
        assert shown["a"]["models"] == ["bidroute-worker"]
        totals = state["totals"]
        assert (totals["requests"], totals["released"], totals["finished"], totals["failed"]) == (25, 25, 25, 0)
        assert (totals["output_tokens"], totals["prompt_tokens"]) == (125, 500)
        assert (state["queue"]["waiting"], state["policy"]) == (0, "bid_price")
        _, page = await router.admin("GET", "/metrics")
        for line in ('_slots_total{worker="a"} 3.0', '_leases{worker="b"} 0.0', '_breaker_state{worker="a"} 0.0'):
            assert line in page
        assert "queue_length 0.0" in page


async def test_a_worker_may_come_late_and_who_waits_is_served_then() -> None:
    late = LiveWorker("late")
    async with routed([late]) as router:
        waiting = ask(router, 3, 4, request_id="early")
        await until(lambda: router.state().queue.waiting == 3)
        assert router.worker_state("late").status == "joining"
        assert (await router.admin("GET", "/admin/explain/early"))[1]["status"] == "waiting"
        await late.start()
        assert await ended(router, waiting) == ["whole"] * 3


async def test_a_worker_that_dies_is_out_and_comes_back() -> None:
    a, b = await start(LiveWorker("a"), LiveWorker("b"))
    async with routed([a, b]) as router:
        await joined(router, "a", "b")
        await a.kill()
        await until(lambda: router.worker_state("a").status == "down")
        assert {(await client).worker for client in ask(router, 10, 3)} == {"b"}
        await a.start()
        await until(lambda: router.worker_state("a").breaker == "half-open")
        asked: list[asyncio.Task[Outcome]] = []
        async with asyncio.timeout(5):
            while router.worker_state("a").breaker != "closed":
                asked += ask(router, 4, 3)
                await asyncio.sleep(0.05)
        assert set(await ended(router, asked)) == {"whole"}


async def test_all_workers_may_die_and_those_who_wait_are_served_later() -> None:
    (a,) = await start(LiveWorker("a", batch_slots=2))
    async with routed([a]) as router:
        await joined(router, "a")
        await a.kill()
        await until(lambda: router.worker_state("a").status == "down")
        waiting = ask(router, 12, 4)
        await until(lambda: router.state().queue.waiting == 12)
        await a.start()
        assert await ended(router, waiting) == ["whole"] * 12
        assert slots(router, "a") in (1, 2)
        assert router.dispatcher.workers["a"].breaker.state is BreakerState.CLOSED


async def test_workers_that_are_alike_share_alike() -> None:
    a, b = await start(LiveWorker("a", **SLOW), LiveWorker("b", **SLOW))
    async with routed([a, b]) as router:
        await joined(router, "a", "b")
        asked = ask(router, 12, 20)
        await until(lambda: sum(w.leases for w in router.state().workers) == 12)
        assert min(w.leases for w in router.state().workers) >= 4
        assert await ended(router, asked) == ["whole"] * 12


async def test_who_runs_on_a_worker_that_dies_is_told_or_tried_elsewhere() -> None:
    a, b = await start(LiveWorker("a", **SLOW), LiveWorker("b", **SLOW))
    async with routed([a, b]) as router:
        await joined(router, "a", "b")
        streams, wholes = ask(router, 6, 20), ask(router, 6, 20, stream=False)
        await until(lambda: min(w.leases for w in router.state().workers) >= 2)
        await asyncio.sleep(0.2)  # bytes have gone to those who stream
        await a.kill()
        kinds = await ended(router, streams + wholes)
        assert set(kinds[:6]) <= {"whole", "broken"}
        assert kinds[6:] == ["whole"] * 6
        totals = router.dispatcher.totals
        assert totals.retries > 0
        assert totals.failed == kinds.count("broken")


async def test_load_of_others_shrinks_what_is_believed() -> None:
    (a,) = await start(LiveWorker("a", batch_slots=8, **SLOW))
    async with routed([a]) as router:
        await joined(router, "a")
        direct = Routed(router.fleet, a.url, "", router.session)
        others = ask(direct, 5, 60)
        await until(lambda: slots(router, "a") == 3)
        ours = ask(router, 6, 5)
        await until(lambda: router.worker_state("a").leases == 3)
        assert a.app.engine.running <= 8
        await asyncio.gather(*others)
        assert await ended(router, ours) == ["whole"] * 6
        await until(lambda: slots(router, "a") == 8)


async def test_a_router_that_starts_anew_does_not_overfill() -> None:
    late = LiveWorker("a", batch_slots=6, **SLOW)
    async with routed([late]) as router:
        ours = ask(router, 6, 4)
        await until(lambda: router.state().queue.waiting == 6)
        await late.start()
        before = ask(Routed(router.fleet, late.url, "", router.session), 5, 60)
        await joined(router, "a")
        assert slots(router, "a") == 1
        most = 0
        while not all(client.done() for client in before):
            most = max(most, late.app.engine.running + len(late.app.engine.waiting))
            await asyncio.sleep(0.02)
        assert most <= 6
        assert await ended(router, ours + before) == ["whole"] * 11


async def test_preemptions_make_it_more_careful() -> None:
    (a,) = await start(LiveWorker("a", batch_slots=8, kv_tokens=320, latency="affine:0.01,0,0"))
    async with routed([a]) as router:
        await joined(router, "a")
        assert router.worker_state("a").kv_total == 320
        direct = Routed(router.fleet, a.url, "", router.session)
        await asyncio.gather(*ask(direct, 8, 100))
        await until(lambda: router.state().totals.preemptions > 0)
        await until(lambda: router.worker_state("a").slots_total == 8)
        assert router.worker_state("a").kv_total < 320


async def test_the_fleet_changes_while_requests_run() -> None:
    a, b = await start(LiveWorker("a", batch_slots=4), LiveWorker("b", batch_slots=4))
    async with routed([a]) as router:
        await joined(router, "a")
        asked = ask(router, 30, 25)
        assert (await router.admin("POST", "/admin/workers", {"url": b.url, "name": "b"}))[0] == 201
        await joined(router, "b")
        asked += ask(router, 20, 25)
        await until(lambda: router.worker_state("b").leases > 0)
        assert (await router.admin("POST", "/admin/workers/a/resize", {"batch_slots": 2}))[0] == 200
        await until(lambda: slots(router, "a") == 2)
        assert (await router.admin("POST", "/admin/workers/a/drain", {}))[0] == 200
        assert router.worker_state("a").status == "draining"
        assert (await router.admin("DELETE", "/admin/workers/a"))[0] == 200
        await until(lambda: list(router.dispatcher.workers) == ["b"])
        assert (await router.admin("POST", "/admin/workers", {"url": a.url, "name": "a"}))[0] == 201
        await joined(router, "a")
        assert set(await ended(router, asked)) == {"whole"}
        assert (await router.admin("DELETE", "/admin/workers/zz"))[0] == 404
        assert (await router.admin("POST", "/admin/workers", {"url": a.url, "name": "a"}))[0] == 400
    await b.kill()


async def test_a_worker_removed_at_once_ends_its_streams_and_they_count() -> None:
    (a,) = await start(LiveWorker("a", **SLOW))
    async with routed([a]) as router:
        await joined(router, "a")
        asked = ask(router, 3, 8, request_id="there")
        await until(lambda: router.worker_state("a").leases == 3)
        assert (await router.admin("DELETE", "/admin/workers/a?now=true"))[0] == 200
        assert router.state().workers == []
        assert (await router.admin("GET", "/admin/explain/there"))[1]["status"] == "running"
        assert await ended(router, asked) == ["whole"] * 3
        assert router.dispatcher.totals.finished == 3


async def test_a_name_given_back_while_its_old_owner_drains() -> None:
    (a,) = await start(LiveWorker("a", **SLOW))
    async with routed([a]) as router:
        await joined(router, "a")
        asked = ask(router, 2, 10)
        await until(lambda: router.worker_state("a").leases == 2)
        await router.admin("POST", "/admin/workers/a/drain", {})
        assert (await router.admin("POST", "/admin/workers", {"url": a.url, "name": "a"}))[0] == 201
        await joined(router, "a")
        assert await ended(router, asked + ask(router, 2, 3)) == ["whole"] * 4
        await until(lambda: [worker.name for worker in router.state().workers] == ["a"])


async def test_policy_and_objective_change_while_it_runs() -> None:
    (a,) = await start(LiveWorker("a", batch_slots=1, **SLOW))
    async with routed([a]) as router:
        await joined(router, "a")
        asked = ask(router, 4, 6)
        await until(lambda: router.state().queue.waiting == 3)
        status, answer = await router.admin("PATCH", "/admin/objective", {"objective": "latency"})
        assert (status, answer["objective"]) == (200, router.state().objective)
        assert router.dispatcher.policy.objective is router.fleet._objective  # type: ignore[attr-defined]
        assert (await router.admin("PATCH", "/admin/policy", {"policy": "fifo"}))[0] == 200
        assert router.state().policy == router.dispatcher.policy.name == "fifo"
        assert (await router.admin("PATCH", "/admin/policy", {"policy": "nonsense"}))[0] == 400
        assert (await router.admin("PATCH", "/admin/policy", {"policy": "bid_price"}))[0] == 200
        assert await ended(router, asked) == ["whole"] * 4
        assert router.worker_state("a").slot_price


async def test_every_request_can_be_explained() -> None:
    (a,) = await start(LiveWorker("a", batch_slots=1, **SLOW))
    async with routed([a]) as router:
        await joined(router, "a")
        first = ask(router, 1, 12, request_id="first")
        await until(lambda: router.worker_state("a").leases == 1)
        second = ask(router, 1, 3, request_id="second")
        await until(lambda: router.state().queue.waiting == 1)
        running = (await router.admin("GET", "/admin/explain/first"))[1]
        assert (running["status"], running["attempts"]) == ("running", ["a"])
        assert running["decisions"][0]["outcome"] == "released"
        waiting = (await router.admin("GET", "/admin/explain/second"))[1]
        assert (waiting["status"], waiting["attempts"]) == ("waiting", [])
        assert waiting["decisions"][-1]["held_by"] is not None
        assert await ended(router, first + second) == ["whole"] * 2
        assert (await router.admin("GET", "/admin/explain/second"))[1]["status"] == "ended"
        assert (await router.admin("GET", "/admin/explain/never"))[0] == 404


async def test_a_hang_is_noticed_and_others_serve() -> None:
    a, b = await start(LiveWorker("a"), LiveWorker("b"))
    async with routed([a, b], http={"first_byte_timeout_s": 0.5, "stall_timeout_s": 0.5}) as router:
        await joined(router, "a", "b")
        a.fault("hang")
        asked = ask(router, 10, 4)
        assert await ended(router, asked) == ["whole"] * 10
        assert router.dispatcher.totals.retries > 0
        assert router.worker_state("a").breaker != "closed"
        a.fault("none")


@pytest.mark.parametrize("policy", ["bid_price", "round_robin"])
async def test_stopping_while_requests_run_and_wait(policy: str) -> None:
    (a,) = await start(LiveWorker("a", batch_slots=1, **SLOW))
    async with routed([a], policy=policy) as router:
        await joined(router, "a")
        asked = ask(router, 5, 50)
        await until(lambda: router.worker_state("a").leases >= 1)
        dispatcher = router.dispatcher
    kinds = [(await client).kind for client in asked]
    assert set(kinds) <= {"broken", "error"}
    assert leaks(dispatcher) == []


async def test_a_token_budget_is_priced_where_it_is_known_and_all_are_served() -> None:
    a, b = await start(LiveWorker("a", batch_slots=8), LiveWorker("b", batch_slots=8))
    async with routed([a]) as router:
        await joined(router, "a")
        told = {"url": b.url, "name": "b", "token_budget": 16}  # less than any prompt
        assert (await router.admin("POST", "/admin/workers", told))[0] == 201
        await joined(router, "b")
        fleet = router.dispatcher.controller.state.fleet
        assert fleet.token_budget.tolist() == [0, 16]
        assert await ended(router, ask(router, 40, 5)) == ["whole"] * 40
        shown = {worker["name"]: worker for worker in (await router.admin("GET", "/admin/state"))[1]["workers"]}
        assert (len(shown["a"]["token_price"]), shown["a"]["kv_price"] != []) == (0, True)
        assert len(shown["b"]["token_price"]) == len(shown["b"]["kv_price"])
    await b.kill()
