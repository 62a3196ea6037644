"""KV that one worker hands to another: kept for its lease, fetched once, or processed anew."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.worker.live import SLOW, Live, live, until

ASK = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
PROMPT = {"prompt": [1] * 100}


async def prefill(worker: Live) -> dict[str, Any]:
    status, answer = await worker.post("/v1/completions", {**PROMPT, **ASK, "max_tokens": 1})
    assert status == 200
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


async def decode(worker: Live, params: dict[str, Any], tokens: int = 4) -> dict[str, Any]:
    body = {**PROMPT, "max_tokens": tokens, "ignore_eos": True, "kv_transfer_params": params}
    status, answer = await worker.post("/v1/completions", body)
    assert status == 200
    assert answer["usage"] == {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
    usage: dict[str, Any] = answer["usage"]
    return usage


async def test_kv_is_kept_until_it_is_fetched() -> None:
    async with live() as producer, live() as consumer:
        params = await prefill(producer)
        assert params["do_remote_prefill"] is True
        assert params["remote_num_tokens"] == 100
        assert producer.worker.engine.kv_usage > 0
        assert producer.worker.engine.running == 0
        await decode(consumer, params)
        assert producer.worker.engine.kv_usage == 0
        assert consumer.worker.engine.counters.prompt_tokens == 1
        assert await consumer.metric("vllm:prompt_tokens_by_source_total", "external_kv_transfer") == 100
        assert await consumer.metric("bidroute_worker:fetched_prompts_total") == 1
        assert await consumer.metric("bidroute_worker:recomputed_prompts_total") == 0


async def test_kv_is_fetched_once_and_what_is_not_there_is_processed() -> None:
    async with live() as producer, live() as consumer:
        params = await prefill(producer)
        await decode(consumer, params)
        await decode(consumer, params)
        await decode(consumer, params | {"remote_port": 1})
        assert consumer.worker.engine.counters.prompt_tokens == 1 + 100 + 100
        assert await consumer.metric("bidroute_worker:recomputed_prompts_total") == 2
        assert await producer.metric("vllm:nixl_num_notifications_after_expiry_total") == 1
        status, _ = await producer.post("/kv/fetch", b"nonsense")
        assert status == 400


async def test_kv_is_given_up_when_its_lease_ends() -> None:
    async with live(kv_lease_s=0.1) as producer, live() as consumer:
        params = await prefill(producer)
        await until(lambda: producer.worker.engine.kv_usage == 0)
        assert await producer.metric("vllm:nixl_num_kv_expired_reqs_total") == 1
        await decode(consumer, params)
        assert await consumer.metric("bidroute_worker:recomputed_prompts_total") == 1


async def test_one_client_id_may_be_prefilled_again() -> None:
    async with live() as producer, live() as consumer:
        for _ in range(2):
            async with producer.session.post(
                f"{producer.url}/v1/completions",
                json={**PROMPT, **ASK, "max_tokens": 1},
                headers={"x-request-id": "same"},
            ) as response:
                params = (await response.json())["kv_transfer_params"]
        await decode(consumer, params)
        assert producer.worker.engine.kv_usage > 0  # the first one's is kept still


async def test_who_leaves_or_streams_keeps_nothing() -> None:
    async with live(latency=SLOW, prefill="affine:0.3,0") as producer:
        asked = asyncio.create_task(prefill(producer))
        await until(lambda: producer.worker.engine.running == 1)
        asked.cancel()
        await until(lambda: producer.worker.engine.kv_usage == 0)
        await producer.events("/v1/completions", {**PROMPT, **ASK, "max_tokens": 1})
        assert producer.worker.engine.kv_usage == 0
        assert producer.worker.transfer.kept == {}


async def test_kv_that_was_fetched_is_lost_by_a_preemption() -> None:
    async with live() as producer, live(kv_tokens=160, block_size=16, latency="affine:0.005,0,0") as consumer:
        params = await prefill(producer)
        body = {"prompt": [1] * 16, "max_tokens": 100, "ignore_eos": True}
        other = asyncio.create_task(consumer.post("/v1/completions", body))
        await until(lambda: len(consumer.worker.engine.decoding) == 1)
        await decode(consumer, params, 40)
        assert (await other)[0] == 200
        assert consumer.worker.engine.counters.preemptions >= 1
        assert consumer.worker.engine.kv_usage == 0
