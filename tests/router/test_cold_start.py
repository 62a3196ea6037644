"""A burst of texts meets a router that knows nothing yet of the workers' tokenizer."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from bidroute.worker.app import WorkerApp
from tests.soak.live import LiveWorker, Routed, routed, until

TEXT = "every byte of this is a token to such a worker. " * 5  # 240 bytes


def workers(bytes_per_token: float) -> list[LiveWorker]:
    """Three in which eight such requests fit by slots, and four or five by KV, at a byte a token."""
    return [
        LiveWorker(f"w{k}", bytes_per_token=bytes_per_token, batch_slots=8, kv_tokens=1600, latency="affine:0.01,0,0")
        for k in range(3)
    ]


async def burst(router: Routed, count: int) -> None:
    asked = [asyncio.create_task(router.ask(60, text=TEXT)) for _ in range(count)]
    assert {(await one).kind for one in asked} == {"whole"}


def overfilled(fleet: list[LiveWorker]) -> int:
    return sum(worker.app.engine.counters.preemptions for worker in fleet)


async def _no_such_path(app: WorkerApp, request: web.Request) -> web.Response:
    return web.Response(status=404)


@pytest.mark.parametrize("tells", [True, False])
async def test_a_byte_a_token_overfills_nobody(tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tells:
        monkeypatch.setattr(WorkerApp, "tokenize", _no_such_path)
    fleet = workers(1.0)
    for worker in fleet:
        await worker.start()
    async with routed(fleet) as router:
        await until(lambda: len(router.dispatcher.workers) == 3)
        await burst(router, 60)
        assert overfilled(fleet) <= 2
        assert router.dispatcher.estimates.rates.estimate("", len(TEXT)) == pytest.approx(len(TEXT), rel=0.3)


async def test_ordinary_texts_are_soon_known_for_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerApp, "tokenize", _no_such_path)
    fleet = workers(4.0)
    for worker in fleet:
        await worker.start()
    async with routed(fleet) as router:
        await until(lambda: len(router.dispatcher.workers) == 3)
        asked = [asyncio.create_task(router.ask(300, text=TEXT)) for _ in range(12)]
        rates = router.dispatcher.estimates.rates
        assert rates.estimate("", len(TEXT)) == len(TEXT)
        await until(lambda: rates.estimate("", len(TEXT)) < 0.4 * len(TEXT))
        assert not any(one.done() for one in asked)  # their counters told it, before any of them ended
        assert {(await one).kind for one in asked} == {"whole"}
        assert overfilled(fleet) == 0


async def test_a_worker_tells_what_its_tokenizer_makes_of_a_text() -> None:
    fleet = workers(2.0)
    await fleet[0].start()
    async with routed(fleet[:1]) as router:
        await until(lambda: router.dispatcher.workers)
        rates = router.dispatcher.estimates.rates
        assert rates.estimate("bidroute-worker", 1000) == pytest.approx(625, rel=0.01)
        async with router.session.post(f"{fleet[0].url}/tokenize", json={"prompt": TEXT}) as answer:
            told = await answer.json()
        assert (told["count"], len(told["tokens"])) == (120, 120)
        async with router.session.post(f"{fleet[0].url}/tokenize", json={"messages": "x"}) as answer:
            assert answer.status == 400
