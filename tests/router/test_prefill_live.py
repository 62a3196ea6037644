"""Prefill on one worker, decode on another: the whole router in front of stand-in workers that play both roles."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from bidroute.router.prefill_pool import LeaseStage
from tests.soak.live import LiveWorker, Outcome, Routed, leaks, routed, until

SLOW: dict[str, Any] = {"latency": "affine:0.05,0,0"}
SLOW_PREFILL: dict[str, Any] = {"prefill": "affine:0,0.002"}


async def start(*workers: LiveWorker) -> list[LiveWorker]:
    for worker in workers:
        await worker.start()
    return list(workers)


async def joined(router: Routed, *names: str) -> None:
    await until(lambda: all(router.fleet._in_service(name) is not None for name in names))


def ask(router: Routed, count: int, tokens: int, **how: Any) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(router.ask(tokens, **how)) for _ in range(count)]


async def ended(router: Routed, asked: list[asyncio.Task[Outcome]]) -> list[str]:
    """How these requests ended; nothing may be left of them."""
    outcomes = [await client for client in asked]
    await until(lambda: not leaks(router.dispatcher))
    return [outcome.kind for outcome in outcomes]


def held(router: Routed) -> int:
    """Prompt tokens that prefill workers keep, by the router's account."""
    return sum(load.held_tokens for load in router.dispatcher.prefill.pool.loads.values())


def recomputed(worker: LiveWorker) -> int:
    return worker.app.transfer.counters.recomputed


async def test_prompts_are_processed_here_and_decoded_there() -> None:
    a, p, q = await start(LiveWorker("a", batch_slots=4), LiveWorker("p"), LiveWorker("q"))
    async with routed([a], [p, q]) as router:
        await joined(router, "a", "p", "q")
        asked = ask(router, 12, 6, prompt_tokens=100) + ask(router, 4, 6, prompt_tokens=100, stream=False)
        assert await ended(router, asked) == ["whole"] * 16
        assert {(await client).worker for client in asked} == {"a"}
        assert a.app.transfer.counters.fetched_tokens == 1600
        assert recomputed(a) == 0
        assert a.app.engine.counters.prompt_tokens == 16  # the last token of each
        prompts = [worker.app.engine.counters.prompt_tokens for worker in (p, q)]
        assert sum(prompts) == 1600
        assert min(prompts) >= 300
        assert held(router) == 0
        assert [worker.app.engine.kv_usage for worker in (a, p, q)] == [0.0] * 3
        status, state = await router.admin("GET", "/admin/state")
        assert status == 200
        assert {worker["name"]: worker["role"] for worker in state["workers"]} == {
            "a": "decode",
            "p": "prefill",
            "q": "prefill",
        }
        _, page = await router.admin("GET", "/metrics")
        assert 'bidroute_worker_role{role="prefill",worker="p"} 1.0' in page
        assert "bidroute_hand_over_wait_seconds_count 16.0" in page


async def test_a_request_is_explained_with_its_prefill() -> None:
    a, p = await start(LiveWorker("a", **SLOW), LiveWorker("p", **SLOW_PREFILL))
    async with routed([a], [p]) as router:
        await joined(router, "a", "p")
        asked = ask(router, 1, 8, prompt_tokens=200, request_id="it")
        await until(lambda: router.fleet.state().totals.requests)
        await asyncio.sleep(0.2)
        found = (await router.admin("GET", "/admin/explain/it"))[1]
        assert (found["status"], found["prefills"][0]["status"]) == ("prefilling", "prefilling")
        assert await ended(router, asked) == ["whole"]
        found = (await router.admin("GET", "/admin/explain/it"))[1]
        (step,) = found["prefills"]
        assert (step["status"], step["worker"], step["prompt_tokens"]) == ("handed over", "p", 200)
        assert step["prefill_s"] > 0.3
        assert found["decisions"][0]["worker"] == "a"


async def test_a_client_may_leave_at_any_point() -> None:
    a, p = await start(LiveWorker("a", batch_slots=1, **SLOW), LiveWorker("p", batch_slots=4, **SLOW_PREFILL))
    async with routed([a], [p], kv_lease_s=6.0) as router:
        await joined(router, "a", "p")
        running = ask(router, 1, 60)
        await until(lambda: router.worker_state("a").leases)
        during_prefill = ask(router, 1, 5, prompt_tokens=200, leave_s=0.2)
        assert await ended_one(during_prefill) == "left"
        await until(lambda: not p.app.engine.running)
        assert router.dispatcher.prefill.pool.total(LeaseStage.SENT) == (0, 0)
        waiting = ask(router, 1, 5, prompt_tokens=30, leave_s=1.0)
        await until(lambda: router.state().queue.prefilled == 1)
        assert await ended_one(waiting) == "left"
        await until(lambda: router.state().queue.prefilled == 0)
        assert held(router) == 30  # its KV is there still, until its lease ends
        for client in running:
            client.cancel()
        await until(lambda: not leaks(router.dispatcher))
        await until(lambda: not a.app.engine.running)
        await until(lambda: held(router) == 0)


async def ended_one(asked: list[asyncio.Task[Outcome]]) -> str:
    return (await asked[0]).kind


async def test_what_waits_too_long_is_prefilled_again_and_never_recomputed() -> None:
    lease_s = 1.0
    a, p = await start(LiveWorker("a", batch_slots=1, **SLOW), LiveWorker("p", kv_lease_s=lease_s))
    async with routed([a], [p], kv_lease_s=lease_s) as router:
        await joined(router, "a", "p")
        first = ask(router, 1, 50)  # 2.5 s, the only slot
        await until(lambda: router.worker_state("a").leases)
        second = ask(router, 1, 4, prompt_tokens=60, request_id="late")
        assert await ended(router, first + second) == ["whole"] * 2
        assert recomputed(a) == 0
        assert a.app.transfer.counters.fetched == 2
        assert p.app.transfer.counters.fetched_too_late == 0
        assert p.app.transfer.counters.expired >= 1
        _, page = await router.admin("GET", "/metrics")
        assert 'bidroute_prefilled_again_total{reason="lease"}' in page
        steps = (await router.admin("GET", "/admin/explain/late"))[1]["prefills"]
        assert len(steps) > 1


async def test_no_more_is_prefilled_than_decode_can_take() -> None:
    a, p = await start(LiveWorker("a", batch_slots=2, **SLOW), LiveWorker("p"))
    async with routed([a], [p], kv_lease_s=2.0) as router:
        await joined(router, "a", "p")
        asked = ask(router, 30, 10)  # half a second each, two at once
        most = 0
        while not all(client.done() for client in asked):
            most = max(most, router.state().queue.prefilled)
            await asyncio.sleep(0.02)
        assert await ended(router, asked) == ["whole"] * 30
        assert recomputed(a) == 0
        assert p.app.transfer.counters.expired == 0
        assert most <= 6


async def test_a_prefill_worker_that_fails_is_left_for_another() -> None:
    a, p, q = await start(LiveWorker("a"), LiveWorker("p"), LiveWorker("q"))
    async with routed([a], [p, q]) as router:
        await joined(router, "a", "p", "q")
        p.fault("error", status=500)
        assert await ended(router, ask(router, 20, 3)) == ["whole"] * 20
        assert router.worker_state("p").status == "down"
        p.fault("none")
        await until(lambda: router.worker_state("p").breaker != "open", 4.0)
        assert await ended(router, ask(router, 4, 3)) == ["whole"] * 4
        p.fault("error", status=503, count=2)
        assert await ended(router, ask(router, 8, 3)) == ["whole"] * 8
        p.fault("drop")
        assert await ended(router, ask(router, 8, 3)) == ["whole"] * 8
        assert recomputed(a) == 0


async def test_a_prefill_worker_that_hangs_or_dies_is_left_for_another() -> None:
    a, p, q = await start(LiveWorker("a"), LiveWorker("p"), LiveWorker("q"))
    async with routed([a], [p, q], http={"first_byte_timeout_s": 0.5}) as router:
        await joined(router, "a", "p", "q")
        p.fault("hang")
        assert await ended(router, ask(router, 6, 3)) == ["whole"] * 6
        assert router.worker_state("p").status == "down"
        await p.kill()
        assert await ended(router, ask(router, 6, 3)) == ["whole"] * 6
        await q.kill()
        asked = ask(router, 3, 3)
        await asyncio.sleep(0.3)
        assert not any(client.done() for client in asked)  # they wait for a prefill worker
        await p.start()
        assert await ended(router, asked) == ["whole"] * 3
        assert recomputed(a) == 0


async def test_a_request_at_fault_gets_the_prefill_workers_words() -> None:
    a, p = await start(LiveWorker("a"), LiveWorker("p", max_model_len=64))
    async with routed([a], [p]) as router:
        await joined(router, "a", "p")
        outcome = await router.ask(3, prompt_tokens=100)
        assert (outcome.kind, outcome.detail, outcome.worker) == ("error", "400 400", "p")
        assert router.worker_state("p").breaker == "closed"
        await until(lambda: not leaks(router.dispatcher))
        assert router.state().totals.failed == 1


async def test_a_decode_worker_that_fails_before_its_first_byte() -> None:
    a, b, p = await start(LiveWorker("a"), LiveWorker("b"), LiveWorker("p"))
    async with routed([a, b], [p]) as router:
        await joined(router, "a", "b", "p")
        a.fault("drop", after_tokens=0)
        assert await ended(router, ask(router, 8, 5)) == ["whole"] * 8
        assert recomputed(a) + recomputed(b) == 0  # KV that may have been fetched was made anew
        _, page = await router.admin("GET", "/metrics")
        assert 'bidroute_prefilled_again_total{reason="failure"}' in page
        await until(lambda: router.worker_state("a").status == "down")


async def test_a_decode_worker_that_was_never_reached_fetched_nothing() -> None:
    a, b, p = await start(LiveWorker("a", batch_slots=8), LiveWorker("b", batch_slots=2), LiveWorker("p"))
    async with routed([a, b], [p], scrape_s=1.0) as router:
        await joined(router, "a", "b", "p")
        await a.kill()
        assert await ended(router, ask(router, 1, 5)) == ["whole"]
        assert p.app.engine.counters.prompt_tokens == 20
        assert recomputed(b) == 0


@pytest.mark.parametrize("policy", ["fifo", "round_robin"])
async def test_every_policy_can_do_it(policy: str) -> None:
    a, b, p = await start(LiveWorker("a", batch_slots=2), LiveWorker("b", batch_slots=2), LiveWorker("p"))
    async with routed([a, b], [p], policy=policy) as router:
        await joined(router, "a", "b", "p")
        assert await ended(router, ask(router, 20, 5)) == ["whole"] * 20
        assert recomputed(a) + recomputed(b) == 0


async def test_what_cannot_be_split_goes_to_a_decode_worker_whole() -> None:
    a, p = await start(LiveWorker("a"), LiveWorker("p"))
    async with routed([a], [p]) as router:
        await joined(router, "a", "p")
        body = {"prompt": [1] * 10, "max_tokens": 2, "echo": True}
        async with router.session.post(f"{router.url}/v1/completions", json=body) as answer:
            assert answer.status == 200
        assert p.app.engine.counters.prompt_tokens == 0
        assert a.app.engine.counters.prompt_tokens == 10


async def test_prefill_workers_come_and_go() -> None:
    a, p, q = await start(LiveWorker("a"), LiveWorker("p"), LiveWorker("q"))
    async with contextlib.AsyncExitStack() as stack, routed([a]) as router:
        for worker in (p, q):
            stack.push_async_callback(worker.kill)
        await joined(router, "a")
        assert router.worker_state("a").role == "both"
        assert await ended(router, ask(router, 2, 3)) == ["whole"] * 2
        for worker in (p, q):
            status, _ = await router.admin(
                "POST", "/admin/workers", {"url": worker.url, "name": worker.name, "role": "prefill"}
            )
            assert status == 201
        await joined(router, "p", "q")
        assert router.worker_state("a").role == "decode"
        assert (await router.admin("POST", "/admin/workers/p/drain", {}))[0] == 200
        assert await ended(router, ask(router, 4, 3)) == ["whole"] * 4
        assert (p.app.engine.counters.prompt_tokens, q.app.engine.counters.prompt_tokens) == (0, 80)
        assert (await router.admin("POST", "/admin/workers/q/resize", {"batch_slots": 5}))[0] == 200
        assert router.worker_state("q").slots_total <= 5
        for name in ("p", "q"):
            assert (await router.admin("DELETE", f"/admin/workers/{name}"))[0] == 200
        await until(lambda: len(router.state().workers) == 1)
        assert router.worker_state("a").role == "both"
        assert await ended(router, ask(router, 2, 3)) == ["whole"] * 2
        assert a.app.engine.counters.prompt_tokens == 4 * 20 + 4


async def test_a_prefill_worker_that_is_restarted_has_lost_its_kv() -> None:
    a, p = await start(LiveWorker("a", batch_slots=1, **SLOW), LiveWorker("p"))
    async with routed([a], [p]) as router:
        await joined(router, "a", "p")
        first = ask(router, 1, 40)
        await until(lambda: router.worker_state("a").leases)
        second = ask(router, 1, 4)
        await until(lambda: router.state().queue.prefilled == 1)
        await p.kill()
        await until(lambda: router.worker_state("p").status == "down")
        await p.start()
        assert await ended(router, first + second) == ["whole"] * 2
        assert recomputed(a) == 0


async def test_no_lease_is_left_whatever_breaks() -> None:
    """Workers of both kinds fail, hang, die and come back, and clients leave at random."""
    chance = random.Random(7)
    decode = await start(*(LiveWorker(name, batch_slots=4) for name in "abc"))
    prefill = await start(*(LiveWorker(name, kv_lease_s=3.0) for name in "pq"))
    http = {"first_byte_timeout_s": 0.6, "stall_timeout_s": 0.6, "answer_timeout_s": 3.0, "max_attempts": 5}
    async with routed(decode, prefill, kv_lease_s=3.0, http=http) as router:
        await joined(router, *"abcpq")
        asked = []
        for turn in range(160):
            leave: dict[str, Any] = {"leave_s": chance.uniform(0.01, 0.5)} if chance.random() < 0.3 else {}
            stream, tokens = chance.random() < 0.7, chance.randint(1, 12)
            asked += ask(router, 1, tokens, stream=stream, prompt_tokens=chance.randint(1, 300), **leave)
            await asyncio.sleep(0.03)
            if turn % 16 == 8:
                await break_something(chance.choice([*decode, *prefill]), chance)
        for worker in (*decode, *prefill):
            if worker.up:
                worker.fault("none")
            else:
                await worker.start()
        outcomes = [await client for client in asked]
        await until(lambda: not leaks(router.dispatcher))
        await until(lambda: held(router) == 0)
        kinds = Counter(outcome.kind for outcome in outcomes)
        assert all(outcome.in_order for outcome in outcomes)
        assert kinds["wrong"] == 0
        assert kinds["whole"] > 80
        await until(lambda: all(worker.app.engine.kv_usage == 0 for worker in (*decode, *prefill)))


async def break_something(worker: LiveWorker, chance: random.Random) -> None:
    if not worker.up:
        await worker.start()
    elif (kind := chance.choice(["kill", "hang", "error", "drop", "slow", "none"])) == "kill":
        await worker.kill()
    else:
        worker.fault(kind, **({"count": 4} if kind in ("error", "drop") else {}))
