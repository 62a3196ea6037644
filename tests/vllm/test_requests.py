"""What clients and operators see while all is well."""

import asyncio
import random

import pytest

from tests.vllm.client import (
    began,
    completion,
    engine,
    post,
    state,
    stream,
    until,
    worker_state,
)
from tests.vllm.processes import MODEL_TOKENS, SPECS

pytestmark = pytest.mark.vllm

CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "How long is a piece of string?"}]}
BURST = 120
PREEMPTIONS = "num_preemptions_total"
# The first burst meets a router that still takes too many bytes for a token: this model has four times as many tokens
# as English text would be. By the second it has learned.
MOST = {"first": (4, 5), "second": (1, 5)}  # waiting in an engine for more than an instant, and preempted in all


def chat(output_tokens, **more):
    return {"model": "tiny", "max_tokens": output_tokens, "ignore_eos": True} | MESSAGES | more


async def test_capacity_is_learned(session, router):
    for spec in SPECS:
        known = await worker_state(session, router.admin_url, spec.name)
        assert (known["kind"], known["models"]) == ("vllm", ["tiny"])
        assert (known["slots_total"], known["kv_total"]) == (spec.slots, spec.kv_tokens)


async def test_models(session, router):
    async with session.get(f"{router.url}/v1/models") as answer:
        models = (await answer.json())["data"]
    assert [(model["id"], model["max_model_len"]) for model in models] == [("tiny", MODEL_TOKENS)]


async def test_whole_answers(session, router):
    status, answer = await post(session, router.url, completion(70, 9))
    assert (status, answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (200, 70, 9)
    status, answer = await post(session, router.url, chat(7), CHAT)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 7)
    assert answer["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", completion(50, 12)), (CHAT, chat(12))])
async def test_streams_have_usage_as_asked(session, router, path, body):
    plain = await stream(session, router.url, body, path)
    assert plain.done
    assert plain.usages == []
    assert all(event["choices"] for event in plain.events)
    asked = await stream(session, router.url, body | {"stream_options": {"include_usage": True}}, path)
    assert asked.done
    assert [usage["completion_tokens"] for usage in asked.usages] == [12]
    assert asked.events[-1]["choices"] == []
    continuous = {"include_usage": True, "continuous_usage_stats": True}
    each = await stream(session, router.url, body | {"stream_options": continuous}, path)
    assert len(each.usages) > 2


async def test_a_prompt_that_is_too_long_is_the_clients_fault(session, router):
    status, answer = await post(session, router.url, completion(MODEL_TOKENS + 100, 5))
    assert status == 400
    assert str(MODEL_TOKENS) in answer["error"]["message"]  # in the engine's own words
    for spec in SPECS:
        assert (await worker_state(session, router.admin_url, spec.name))["breaker"] == "closed"


@pytest.mark.parametrize("burst", list(MOST))
async def test_a_burst_overfills_no_engine(session, router, workers, report, burst):
    """Requests of all lengths, more than the fleet can hold by far, while the engines say how they fare."""
    chance = random.Random(burst)
    before = [await engine(session, worker.url) for worker in workers]
    fullest, waiting, last = [0.0] * len(workers), [0.0] * len(workers), [0.0] * len(workers)

    async def watch():
        while True:
            for index, worker in enumerate(workers):
                now = await engine(session, worker.url)
                fullest[index] = max(fullest[index], now["kv_cache_usage_perc"])
                # Whoever comes in the middle of a step waits for its end: only what two readings agree on is a queue.
                waiting[index] = max(waiting[index], min(last[index], now["num_requests_waiting"]))
                last[index] = now["num_requests_waiting"]
            await asyncio.sleep(0.25)

    async def one(at_s, body):
        await asyncio.sleep(at_s)
        return await stream(session, router.url, body | {"stream_options": {"include_usage": True}})

    bodies = [completion(chance.randint(20, 500), chance.randint(20, 250)) for _ in range(BURST)]
    watching = asyncio.create_task(watch())
    began_s = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(one(chance.uniform(0.0, 6.0), body) for body in bodies))
    took_s = asyncio.get_running_loop().time() - began_s
    watching.cancel()
    after = [await engine(session, worker.url) for worker in workers]

    preemptions = [int(new[PREEMPTIONS] - old[PREEMPTIONS]) for old, new in zip(before, after, strict=True)]
    tokens = sum(body["max_tokens"] for body in bodies)
    served = {spec.name: sum(answer.worker == spec.name for answer in answers) for spec in SPECS}
    report.append(
        f"{burst} burst of {BURST}: {took_s:.1f} s, {tokens / took_s:.0f} tokens/s; {served}; KV at most "
        f"{[round(share, 2) for share in fullest]}, waiting at most {waiting}, preemptions {preemptions}"
    )
    for body, answer in zip(bodies, answers, strict=True):
        assert answer.done
        assert [usage["completion_tokens"] for usage in answer.usages] == [body["max_tokens"]]
    assert all(served.values())
    most_waiting, most_preempted = MOST[burst]
    assert sum(preemptions) <= most_preempted
    assert max(waiting) <= most_waiting
    await until(lambda: _idle(session, router), "no lease is left")


async def _idle(session, router):
    now = await state(session, router.admin_url)
    return not now["queue"]["waiting"] and not any(worker["leases"] for worker in now["workers"])


async def _engines_idle(session, workers):
    readings = [await engine(session, worker.url) for worker in workers]
    return not any(now["num_requests_running"] + now["kv_cache_usage_perc"] for now in readings)


async def _generated(session, workers):
    return sum([(await engine(session, worker.url))["generation_tokens_total"] for worker in workers])


async def test_a_client_that_leaves_frees_its_kv(session, router, workers):
    before = await _generated(session, workers)
    async with began(session, router.url, completion(300, 700)):
        assert not await _engines_idle(session, workers)
    await until(lambda: _engines_idle(session, workers), "the engines are idle")
    await until(lambda: _idle(session, router), "the router is idle")
    assert await _generated(session, workers) - before < 700 / 2


async def test_clients_that_leave_the_queue(session, router, workers):
    slots = sum(spec.slots for spec in SPECS)
    before = await _generated(session, workers)
    running = [asyncio.create_task(post(session, router.url, completion(60, 600))) for _ in range(slots + 8)]

    async def queued():
        return (await state(session, router.admin_url))["queue"]["waiting"] >= 8

    await until(queued, "eight wait")
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await until(lambda: _idle(session, router), "the router is idle")
    await until(lambda: _engines_idle(session, workers), "the engines are idle")
    assert await _generated(session, workers) - before < slots * 600 / 2


async def test_page_metrics_and_explanation(session, router):
    async with session.post(
        f"{router.url}/v1/completions", json=completion(30, 3), headers={"x-request-id": "asked-about"}
    ) as answer:
        assert answer.headers["x-request-id"] == "asked-about"
        served_by = answer.headers["x-bidroute-worker"]
    async with session.get(f"{router.admin_url}/admin/explain/asked-about") as answer:
        explained = await answer.json()
    assert (explained["status"], explained["attempts"]) == ("ended", [served_by])
    async with session.get(router.admin_url) as answer:
        assert "<html" in (await answer.text()).lower()
    for url in (router.url, router.admin_url):
        async with session.get(f"{url}/metrics") as answer:
            page = await answer.text()
        assert 'bidroute_released_total{worker="fast"}' in page
        assert 'bidroute_slots_total{worker="middle"} 8.0' in page


async def test_the_fleet_changes_while_it_serves(session, router, workers):
    middle = workers[1]
    admin = f"{router.admin_url}/admin"

    async def change(method, path, body=None):
        async with session.request(method, admin + path, json=body) as answer:
            assert answer.status < 300, await answer.text()

    async def served():
        answers = await asyncio.gather(*(stream(session, router.url, completion(40, 60)) for _ in range(28)))
        assert all(answer.done for answer in answers)
        return {answer.worker for answer in answers}

    async def status():
        return (await worker_state(session, router.admin_url, "middle"))["status"]

    async def is_gone():
        return await status() == "gone"

    async def is_ready():
        return await status() == "ready"

    assert "middle" in await served()
    await change("POST", "/workers/middle/drain", {})
    assert "middle" not in await served()
    await change("DELETE", "/workers/middle")
    await until(is_gone, "the worker has left")
    await change("POST", "/workers", {"url": middle.url, "name": "middle"})
    await until(is_ready, "the worker is back")
    assert "middle" in await served()

    await change("POST", "/workers/small/resize", {"batch_slots": 1})
    assert (await worker_state(session, router.admin_url, "small"))["slots_total"] == 1
    await change("POST", "/workers/small/resize", {"batch_slots": 4})
    await change("PATCH", "/objective", {"objective": "tail"})
    await change("PATCH", "/policy", {"policy": "fifo+safety"})
    assert (await state(session, router.admin_url))["policy"] == "fifo+safety"
    await served()
    await change("PATCH", "/policy", {"policy": "bid_price"})
    await change("PATCH", "/objective", {"objective": "balanced"})
