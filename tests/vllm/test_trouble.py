"""Engines that die, hang or are full, and a router that is told to stop."""

import asyncio
import signal
import time

import aiohttp
import pytest

from tests.vllm.client import (
    PATIENCE_S,
    Streamed,
    began,
    completion,
    events_of,
    post,
    state,
    stream,
    until,
    worker_state,
)
from tests.vllm.processes import LONE_QUEUE, SMALL, STALL_S

pytestmark = pytest.mark.vllm


async def test_a_worker_dies_and_comes_back(session, router, workers, report):
    """Streams it had begun end with an error event; what had sent no byte yet is served elsewhere."""
    fast = workers[0]
    seen = [Streamed() for _ in range(9)]
    streams = [asyncio.create_task(stream(session, router.url, completion(40, 300), seen=one)) for one in seen]
    wholes = [asyncio.create_task(post(session, router.url, completion(40, 200))) for _ in range(9)]

    async def it_serves_both():
        begun = sum(one.worker == "fast" and len(one.events) > 5 for one in seen)
        return 0 < begun < (await worker_state(session, router.admin_url, "fast"))["leases"]

    await until(it_serves_both, "the worker has begun streams, and has requests of which nothing was seen yet")
    fast.signal(signal.SIGKILL)
    answers, bodies = await asyncio.gather(*streams), await asyncio.gather(*wholes)
    fast.ended(PATIENCE_S)
    broken = [answer for answer in answers if not answer.done]
    retries = (await state(session, router.admin_url))["totals"]["retries"]
    report.append(f"a worker killed: {len(broken)} streams ended with an error event, {retries} retries")
    assert broken
    for answer in broken:
        assert (answer.status, answer.worker) == (200, "fast")
        assert answer.error is not None
        assert answer.error["code"] == "worker_failed"
    assert retries > 0
    assert [(status, body["usage"]["completion_tokens"]) for status, body in bodies] == [(200, 200)] * len(bodies)

    async def is_down():
        return (await worker_state(session, router.admin_url, "fast"))["status"] == "down"

    await until(is_down, "the router knows")
    assert (await stream(session, router.url, completion(40, 5))).worker != "fast"

    fast.start()
    await asyncio.to_thread(fast.await_start, f"{fast.url}/health")
    await asyncio.to_thread(fast.warm_up)

    async def serves_again():
        await asyncio.gather(*(post(session, router.url, completion(40, 10)) for _ in range(4)))
        known = await worker_state(session, router.admin_url, "fast")
        return (known["status"], known["breaker"]) == ("ready", "closed")

    await until(serves_again, "its breaker is closed, by a request that it served")


async def test_limits(session, lone_router):
    """A full engine, a full queue, and a request that may not wait."""
    occupied = [asyncio.create_task(post(session, lone_router.url, completion(20, 200))) for _ in range(SMALL.slots)]

    async def is_full():
        return (await worker_state(session, lone_router.admin_url, "small"))["leases"] == SMALL.slots

    async def queue_is_full():
        return (await state(session, lone_router.admin_url))["queue"]["waiting"] == LONE_QUEUE

    await until(is_full, "every slot is taken")
    late = {"x-request-deadline-ms": "4000"}  # less than half of what those in the slots need
    waiting = [asyncio.create_task(_refused(session, lone_router.url, late)) for _ in range(LONE_QUEUE)]
    await until(queue_is_full, "every place in the queue is taken")
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
    assert f" {STALL_S:g} s" in last
    assert waited_s > STALL_S / 2
    assert (await worker_state(session, lone_router.admin_url, "small"))["breaker"] != "closed"

    async def serves_again():
        return (await post(session, lone_router.url, completion(20, 3)))[0] == 200

    await until(serves_again, "it is tried again")


async def test_what_others_run_there_is_seen_at_the_start(session, lone_router, workers):
    """A worker that joins, as all do when a router starts, or starts again, has room kept for what it runs already."""
    small, admin = workers[-1], f"{lone_router.admin_url}/admin/workers"

    async def known():
        return await worker_state(session, lone_router.admin_url, "small")

    async def is_gone():
        return (await known())["status"] == "gone"

    async def has_joined():
        return (await known())["status"] == "ready"

    async def has_both():
        return (await known())["leases"] == 2

    async with session.delete(f"{admin}/small") as answer:
        assert answer.status < 300
    await until(is_gone, "the worker has left")
    async with began(session, small.url, completion(100, 350)), began(session, small.url, completion(100, 350)):
        worker = {"url": small.url, "name": "small", "batch_slots": SMALL.slots}
        async with session.post(admin, json=worker) as answer:
            assert answer.status < 300
        await until(has_joined, "the worker has joined")
        tasks = [asyncio.create_task(post(session, lone_router.url, completion(20, 60))) for _ in range(2)]
        await until(has_both, "it has two requests of the router too")
        told = await known()
        assert told["slots_total"] == SMALL.slots - 2
        assert told["kv_total"] <= SMALL.kv_tokens - 200
        await asyncio.gather(*tasks)


async def test_sigterm_drains(session, lone_router):
    bodies = [completion(20, 200 + index) for index in range(SMALL.slots)]
    asked = {"stream_options": {"include_usage": True}}
    running = [asyncio.create_task(stream(session, lone_router.url, body | asked)) for body in bodies]

    async def all_run():
        return (await worker_state(session, lone_router.admin_url, "small"))["leases"] == SMALL.slots

    async def takes_no_more():
        try:
            async with aiohttp.ClientSession() as newcomer:
                await post(newcomer, lone_router.url, completion(20, 5))
        except aiohttp.ClientConnectorError:
            return True
        except aiohttp.ClientError:  # it was about to be taken
            pass
        return False

    await until(all_run, "all run")
    assert lone_router.child is not None
    lone_router.child.terminate()
    await until(takes_no_more, "nobody listens any more")
    answers = await asyncio.gather(*running)
    assert [answer.usages[0]["completion_tokens"] for answer in answers] == [body["max_tokens"] for body in bodies]
    assert await asyncio.to_thread(lone_router.ended, PATIENCE_S) == 0
