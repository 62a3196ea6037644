"""Engines that die, hang or are full, and a router that is told to stop."""

import asyncio
import signal
import time

import aiohttp
import pytest

from tests.vllm.client import began, completion, events_of, post, state, stream, until, worker_state
from tests.vllm.processes import LONE_QUEUE, SMALL

pytestmark = pytest.mark.vllm


async def test_a_worker_dies_and_comes_back(session, router, workers, report):
    """Streams it had begun end with an error event; what had sent no byte yet is served elsewhere."""
    fast = workers[0]
    streams = [asyncio.create_task(stream(session, router.url, completion(40, 150))) for _ in range(9)]
    wholes = [asyncio.create_task(post(session, router.url, completion(40, 100))) for _ in range(9)]

    async def it_serves():
        return (await worker_state(session, router.admin_url, "fast"))["leases"] >= 6

    await until(it_serves, 5.0, "the worker has six requests")
    await asyncio.sleep(1.0)
    fast.signal(signal.SIGKILL)
    answers, bodies = await asyncio.gather(*streams), await asyncio.gather(*wholes)
    fast.ended(5.0)
    broken = [answer for answer in answers if not answer.done]
    retries = (await state(session, router.admin_url))["totals"]["retries"]
    report.append(f"a worker killed: {len(broken)} streams ended with an error event, {retries} retries")
    assert broken
    for answer in broken:
        assert (answer.status, answer.worker) == (200, "fast")
        assert answer.error is not None
        assert answer.error["code"] == "worker_failed"
    assert retries > 0
    assert [(status, body["usage"]["completion_tokens"]) for status, body in bodies] == [(200, 100)] * len(bodies)

    async def is_down():
        return (await worker_state(session, router.admin_url, "fast"))["status"] == "down"

    await until(is_down, 5.0, "the router knows")
    assert (await stream(session, router.url, completion(40, 5))).worker != "fast"

    fast.start()
    await asyncio.to_thread(fast.await_start, f"{fast.url}/health")

    async def serves_again():
        await asyncio.gather(*(post(session, router.url, completion(40, 10)) for _ in range(4)))
        known = await worker_state(session, router.admin_url, "fast")
        return (known["status"], known["breaker"]) == ("ready", "closed")

    await until(serves_again, 60.0, "its breaker is closed, by a request that it served")


async def test_limits(session, lone_router):
    """A full engine, a full queue, and a request that may not wait."""
    occupied = [asyncio.create_task(post(session, lone_router.url, completion(20, 150))) for _ in range(SMALL.slots)]

    async def is_full():
        return (await worker_state(session, lone_router.admin_url, "small"))["leases"] == SMALL.slots

    await until(is_full, 5.0, "every slot is taken")
    late = {"x-request-deadline-ms": "700"}
    waiting = [asyncio.create_task(_refused(session, lone_router.url, late)) for _ in range(LONE_QUEUE)]
    await asyncio.sleep(0.3)
    assert await _refused(session, lone_router.url, {}) == (429, "queue_full", True)
    assert await asyncio.gather(*waiting) == [(503, "waited_too_long", True)] * LONE_QUEUE
    assert [status for status, _ in await asyncio.gather(*occupied)] == [200] * SMALL.slots


async def _refused(session, url, headers):
    """Status, code, and whether the answer says when to come again."""
    async with session.post(f"{url}/v1/completions", json=completion(20, 5), headers=headers) as answer:
        return answer.status, (await answer.json())["error"]["code"], "Retry-After" in answer.headers


async def test_a_worker_that_hangs(session, lone_router, workers):
    small = workers[-1]
    async with began(session, lone_router.url, completion(20, 400)) as answer:
        small.signal(signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            last = [data async for data in events_of(answer)][-1]
            waited_s = time.monotonic() - began_s
        finally:
            small.signal(signal.SIGCONT)
    assert '"worker_stalled"' in last
    assert 1.5 < waited_s < 6.0
    assert (await worker_state(session, lone_router.admin_url, "small"))["breaker"] != "closed"

    async def serves_again():
        return (await post(session, lone_router.url, completion(20, 3)))[0] == 200

    await until(serves_again, 20.0, "it is tried again")


async def test_what_others_run_there_is_seen_at_the_start(session, workers, request):
    """A router that starts, or starts again, leaves room for what the engines run already."""
    small = workers[-1]
    async with began(session, small.url, completion(100, 800)), began(session, small.url, completion(100, 800)):
        lone = request.getfixturevalue("lone_router")
        tasks = [asyncio.create_task(post(session, lone.url, completion(20, 20))) for _ in range(2)]
        await asyncio.sleep(0.2)
        known = await worker_state(session, lone.admin_url, "small")
        assert known["slots_total"] == SMALL.slots - 2
        assert known["kv_total"] <= SMALL.kv_tokens - 200
        await asyncio.gather(*tasks)


async def test_sigterm_drains(session, lone_router):
    bodies = [completion(20, 80 + index) for index in range(SMALL.slots)]
    asked = {"stream_options": {"include_usage": True}}
    running = [asyncio.create_task(stream(session, lone_router.url, body | asked)) for body in bodies]
    await asyncio.sleep(1.0)
    assert lone_router.child is not None
    lone_router.child.terminate()
    await asyncio.sleep(0.5)
    async with aiohttp.ClientSession() as newcomer:
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(newcomer, lone_router.url, completion(20, 5))
    answers = await asyncio.gather(*running)
    assert [answer.usages[0]["completion_tokens"] for answer in answers] == [body["max_tokens"] for body in bodies]
    assert await asyncio.to_thread(lone_router.ended, 10.0) == 0
