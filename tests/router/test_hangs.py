"""Workers that accept and never progress: found by their own counters, long before any timeout."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.soak.live import LiveWorker, Outcome, Routed, leaks, routed, until

PATIENT = {"first_byte_timeout_s": 600.0, "stall_timeout_s": 600.0, "answer_timeout_s": 600.0}


async def pair(**engine: object) -> list[LiveWorker]:
    workers = [LiveWorker(name, **{"batch_slots": 4, "latency": "affine:0.02,0,0", **engine}) for name in ("a", "b")]
    for worker in workers:
        await worker.start()
    return workers


def ask(router: Routed, count: int, tokens: int, **how: object) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(router.ask(tokens, **how)) for _ in range(count)]  # type: ignore[arg-type]


async def test_a_hang_ends_streams_and_moves_on_who_has_no_byte_yet() -> None:
    a, b = await pair()
    async with routed([a, b], hang_timeout_s=0.7, http=PATIENT) as router:
        await until(lambda: len(router.dispatcher.workers) == 2)
        begun = ask(router, 4, 40) + ask(router, 4, 40, stream=False)
        await until(lambda: a.app.engine.counters.generation_tokens > 8)
        streams_there = sum(
            ticket.output_tokens > 0 for ticket in router.dispatcher.tickets.values() if on(ticket, "a")
        )
        a.fault("hang")
        fresh = ask(router, 4, 5)
        outcomes = Counter(outcome.kind for outcome in await asyncio.gather(*begun, *fresh))
        assert outcomes == Counter(whole=12 - streams_there, broken=streams_there)
        assert router.worker_state("a").status == "down"
        assert b.app.engine.counters.generation_tokens > 0
        await asyncio.sleep(1.5)  # longer than a breaker's pause: nobody is sent there to try
        assert router.worker_state("a").breaker == "open"
        a.fault("none")
        await until(lambda: router.worker_state("a").breaker == "half-open")
        assert {(await one).kind for one in ask(router, 8, 3)} == {"whole"}
        await until(lambda: router.worker_state("a").breaker == "closed")
        await until(lambda: not leaks(router.dispatcher))


def on(ticket: object, name: str) -> bool:
    worker = ticket.worker  # type: ignore[attr-defined]
    return worker is not None and worker.name == name


async def test_a_long_prefill_and_an_idle_worker_are_no_hang() -> None:
    a, b = await pair(kv_tokens=4000, max_batched_tokens=32, prefill="affine:0,0.005")
    async with routed([a, b], hang_timeout_s=0.7, http=PATIENT) as router:
        await until(lambda: len(router.dispatcher.workers) == 2)
        assert {(await one).kind for one in ask(router, 2, 3, prompt_tokens=500)} == {"whole"}
        await asyncio.sleep(1.0)
        assert {router.worker_state(name).breaker for name in ("a", "b")} == {"closed"}
        assert router.dispatcher.totals.retries == 0


async def test_a_worker_whose_metrics_do_not_answer_either_hangs() -> None:
    a, b = await pair()
    await b.kill()
    async with routed([a], hang_timeout_s=0.5, http=PATIENT) as router:
        await until(lambda: len(router.dispatcher.workers) == 1)
        begun = ask(router, 1, 1000)
        await until(lambda: a.app.engine.counters.generation_tokens > 2)
        worker = router.dispatcher.workers["a"]
        await until(lambda: "a" in router.fleet._readings)
        router.fleet._scraper.forget(worker)
        for _ in range(6):  # slow pages alone say nothing, as long as tokens come
            router.fleet.on_failure(worker, "TimeoutError")
            await asyncio.sleep(0.15)
        assert worker.accepts()
        a.fault("hang")
        await asyncio.sleep(0.1)
        while worker.accepts():
            router.fleet.on_failure(worker, "TimeoutError")
            await asyncio.sleep(0.1)
        outcome = await begun[0]
        assert (outcome.kind, outcome.detail) == ("broken", "worker_stalled")
