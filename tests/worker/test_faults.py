"""Faults on demand: a worker that hangs, slows down, answers errors, or drops connections."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from tests.worker.live import Live, live

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "a", "max_tokens": 5, "ignore_eos": True}


async def test_without_the_option_there_is_no_such_route() -> None:
    async with live() as one, one.session.post(one.url + "/fault", json={"kind": "hang"}) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    "body", [{}, {"kind": "sulk"}, {"kind": "slow", "factor": 0}, {"kind": "error", "status": 200}]
)
async def test_faults_that_make_no_sense_are_refused(body: dict[str, object]) -> None:
    async with live(allow_faults=True) as one:
        assert (await one.post("/fault", body))[0] == 400


async def test_a_hanging_engine_accepts_and_makes_no_progress_until_it_is_told_to() -> None:
    async with live(allow_faults=True) as one:
        assert await one.post("/fault", {"kind": "hang"}) == (200, {"fault": "hang"})
        asked = asyncio.create_task(one.post(COMPLETIONS, BODY))
        done, _ = await asyncio.wait([asked], timeout=0.3)
        assert not done
        assert (await one.get("/health"))[0] == 200
        await one.post("/fault", {"kind": "none"})
        assert (await asked)[0] == 200


async def test_a_slow_engine() -> None:
    async with live(allow_faults=True, latency="affine:0.01,0,0") as one:
        await one.post("/fault", {"kind": "slow", "factor": 5.0})
        before = time.monotonic()
        await one.post(COMPLETIONS, BODY)
        assert time.monotonic() - before >= 4 * 0.05 - 0.01


async def test_errors_by_count() -> None:
    async with live(allow_faults=True) as one:
        await one.post("/fault", {"kind": "error", "status": 502, "count": 2})
        assert [(await one.post(COMPLETIONS, BODY))[0] for _ in range(3)] == [502, 502, 200]


@pytest.mark.parametrize("after_tokens", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_dropped_connections(after_tokens: int, stream: bool) -> None:
    async with live(allow_faults=True) as one:
        await one.post("/fault", {"kind": "drop", "after_tokens": after_tokens})
        raw = bytearray()
        with pytest.raises(aiohttp.ClientError):
            await read_into(raw, one, stream)
        assert raw.count(b"data:") <= after_tokens
        assert one.worker.engine.free == one.worker.engine.kv_blocks


async def test_an_error_inside_a_stream() -> None:
    async with live(allow_faults=True) as one:
        await one.post("/fault", {"kind": "stream_error", "after_tokens": 2, "count": 1})
        events = await one.events(COMPLETIONS, BODY)
        assert events[-2]["error"]["code"] == 500
        assert [event["choices"][0]["text"] for event in events[:-2]] == [" 1", " 2"]
        assert len(await one.events(COMPLETIONS, BODY)) == 6


async def test_bad_health() -> None:
    async with live(allow_faults=True) as one:
        await one.post("/fault", {"kind": "unhealthy", "status": 503})
        assert (await one.get("/health"))[0] == 503


async def read_into(raw: bytearray, one: Live, stream: bool) -> None:
    async with one.session.post(one.url + COMPLETIONS, json={**BODY, "stream": stream}) as response:
        async for data in response.content.iter_any():
            raw += data
