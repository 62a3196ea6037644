"""The worker over loopback: what vLLM's clients, routers and scrapers rely on."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest

from tests.worker.live import SLOW, live, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello, world"}]


async def test_a_completion_that_does_not_stream() -> None:
    async with live() as one:
        status, answer = await one.post(COMPLETIONS, {"prompt": "x" * 40, "max_tokens": 5, "ignore_eos": True})
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == " 1 2 3 4 5"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


async def test_a_chat_that_does_not_stream() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {}}]}]
    async with live() as one:
        _, answer = await one.post(CHAT, {"messages": HELLO + parts, "max_completion_tokens": 2, "ignore_eos": True})
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": " 1 2"}
    assert answer["usage"]["prompt_tokens"] == 3 + 1


async def test_a_streamed_completion_has_every_token_once() -> None:
    async with live() as one:
        events = await one.events(COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 30, "ignore_eos": True})
    assert events.pop() == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events) == "".join(f" {k}" for k in range(1, 31))
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * 29 + ["length"]
    assert len({event["id"] for event in events}) == 1
    assert all(event["object"] == "text_completion" and "usage" not in event for event in events)


async def test_a_streamed_chat_begins_with_the_role_and_ends_with_the_usage_asked_for() -> None:
    body = {"messages": HELLO, "max_tokens": 3, "ignore_eos": True, "stream_options": {"include_usage": True}}
    async with live() as one:
        role, *middle, usage, done = await one.events(CHAT, body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["delta"]["content"] for event in middle] == [" 1", " 2", " 3"]
    assert {event["object"] for event in (role, *middle, usage)} == {"chat.completion.chunk"}
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 3, "[DONE]")


async def test_lengths_are_drawn_from_the_seed_unless_they_are_forced() -> None:
    async def lengths(seed: int) -> list[tuple[int, str]]:
        async with live(seed=seed, output_tokens=5.0, latency="affine:0.0002,0,0") as one:
            answers = [(await one.post(CHAT, {"messages": HELLO, "max_tokens": 8}))[1] for _ in range(12)]
        return [(one["usage"]["completion_tokens"], one["choices"][0]["finish_reason"]) for one in answers]

    first = await lengths(0)
    assert first == await lengths(0) != await lengths(1)
    assert {reason for _, reason in first} == {"stop", "length"}
    assert all((tokens == 8) == (reason == "length") for tokens, reason in first)


BAD = [
    (COMPLETIONS, b"{", 400),
    (COMPLETIONS, b'{"prompt": "\xff"}', 400),
    (COMPLETIONS, b'{"prompt": "\\ud800"}', 400),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    (COMPLETIONS, {}, 400),
    (COMPLETIONS, {"prompt": ""}, 400),
    (COMPLETIONS, {"prompt": ["a", "b"]}, 400),
    (COMPLETIONS, {"prompt": "a", "n": 0}, 400),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400),
    (COMPLETIONS, {"prompt": "a", "max_tokens": "many"}, 400),
    (COMPLETIONS, {"prompt": "a", "stream_options": {}}, 400),
    (COMPLETIONS, {"prompt": "a", "model": "another"}, 404),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"prompt": "a"}, 400),
    ("/v1/embeddings", {"input": []}, 400),
]


@pytest.mark.parametrize(("path", "body", "status"), BAD)
async def test_bad_requests_are_refused_as_openai_errors(path: str, body: object, status: int) -> None:
    async with live() as one:
        got, answer = await one.post(path, body)
        assert one.worker.engine.running == 0
    assert got == status
    assert answer["error"]["code"] == status
    assert answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_a_prompt_as_long_as_the_model_is_refused_and_too_many_tokens_are_clamped() -> None:
    async with live(kv_tokens=64, max_model_len=32) as one:
        status, answer = await one.post(COMPLETIONS, {"prompt": "x" * 4 * 32, "max_tokens": 1})
        assert (status, answer["error"]["type"]) == (400, "BadRequestError")
        assert "maximum context length is 32 tokens" in answer["error"]["message"]
        _, answer = await one.post(COMPLETIONS, {"prompt": "x" * 4 * 30, "max_tokens": 99, "ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == 2


async def test_what_a_router_learns_of_it() -> None:
    async with live(kv_tokens=160, block_size=16, batch_slots=7, max_model_len=99) as one:
        assert json.loads((await one.get("/v1/models"))[1])["data"][0]["max_model_len"] == 99
        info = json.loads((await one.get("/server_info?config_format=json"))[1])
        assert info["vllm_config"]["scheduler_config"]["max_num_seqs"] == 7
        page = (await one.get("/metrics"))[1]
        assert 'block_size="16"' in page
        assert 'num_gpu_blocks="11"' in page  # one more than requests can use, as vLLM has it
        assert await one.metric("vllm:engine_sleep_state", 'sleep_state="awake"') == 1.0
        assert (await one.get("/health"))[0] == 200
        assert (await one.post("/v1/embeddings", {"input": ["abcd", "efgh"]}))[1]["usage"]["prompt_tokens"] == 2


async def test_several_choices_are_sequences_of_their_own() -> None:
    async with live(batch_slots=2) as one:
        body = {"prompt": [1] * 5, "max_tokens": 3, "ignore_eos": True, "n": 3}
        _, answer = await one.post(COMPLETIONS, body)
        assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(k, " 1 2 3") for k in range(3)]
        assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
        events = await one.events(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        chunks = [event["choices"][0] for event in events[:-2]]
        for index in range(3):
            assert "".join(chunk["text"] for chunk in chunks if chunk["index"] == index) == " 1 2 3"
        assert (events[-2]["usage"]["completion_tokens"], events[-1]) == (9, "[DONE]")
        assert await one.metric("vllm:prompt_tokens_total") == 30.0
        chat = await one.events(CHAT, {"messages": HELLO, "max_tokens": 2, "ignore_eos": True, "n": 2})
        roles = [e["choices"][0]["index"] for e in chat[:-1] if "role" in e["choices"][0]["delta"]]
        assert roles == [0, 1]


async def test_metrics_follow_the_requests() -> None:
    async with live(kv_tokens=64, batch_slots=1, latency=SLOW) as one:
        body = {"prompt": [1] * 20, "max_tokens": 4, "ignore_eos": True}
        asked = [asyncio.create_task(one.post(COMPLETIONS, body)) for _ in range(2)]
        await until(lambda: one.worker.engine.running == 1 and len(one.worker.engine.waiting) == 1)
        assert await one.metric("vllm:num_requests_running") == 1.0
        assert await one.metric("vllm:num_requests_waiting") == 1.0
        assert await one.metric("vllm:kv_cache_usage_perc") == 0.5
        await asyncio.gather(*asked)
        assert await one.metric("vllm:num_requests_running") == 0.0
        assert await one.metric("vllm:kv_cache_usage_perc") == 0.0
        assert await one.metric("vllm:prompt_tokens_total") == 40.0
        assert await one.metric("vllm:generation_tokens_total") == 8.0
        assert await one.metric("vllm:iteration_tokens_total_count") == 8.0
        assert await one.metric("vllm:time_to_first_token_seconds_count") == 2.0
        assert await one.metric("vllm:time_to_first_token_seconds_sum") == pytest.approx(0.15, abs=0.1)
        assert await one.metric("vllm:inter_token_latency_seconds_count") == 6.0
        assert await one.metric("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.3, abs=0.1)
        assert await one.metric("vllm:request_success_total", 'finished_reason="length"') == 2.0
        assert await one.metric("vllm:num_preemptions_total") == 0.0


async def test_under_kv_pressure_it_preempts_and_still_gives_every_token_once() -> None:
    async with live(kv_tokens=64, block_size=4, batch_slots=4) as one:
        body = {"prompt": [1] * 8, "max_tokens": 40, "ignore_eos": True}
        streams = await asyncio.gather(*(one.events(COMPLETIONS, body) for _ in range(4)))
        assert await one.metric("vllm:num_preemptions_total") > 0
    for events in streams:
        texts = [event["choices"][0]["text"] for event in events[:-1]]
        assert texts == [f" {k}" for k in range(1, 41)]


async def test_time_passes_as_the_latency_model_says_and_faster_with_the_time_scale() -> None:
    for scale in (1.0, 10.0):
        async with live(latency="affine:0.02,0,0", time_scale=scale) as one:
            before = time.monotonic()
            await one.post(COMPLETIONS, {"prompt": "a", "max_tokens": 21, "ignore_eos": True})
            assert 0.38 / scale <= time.monotonic() - before <= 0.38 / scale + 0.4


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_frees_its_kv_at_once_running_and_queued(stream: bool) -> None:
    async with live(latency=SLOW, batch_slots=1) as one:
        engine = one.worker.engine
        body = {"prompt": [1] * 500, "max_tokens": 1000, "ignore_eos": True, "stream": stream}
        async with aiohttp.ClientSession() as leaving:

            async def stay() -> None:
                async with leaving.post(one.url + COMPLETIONS, json=body) as response:
                    await response.read()

            asked = [asyncio.create_task(stay()) for _ in range(2)]
            await until(lambda: engine.running == 1 and len(engine.waiting) == 1)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        before = time.monotonic()
        await until(lambda: engine.running == 0 and not engine.waiting)
        assert time.monotonic() - before < 0.2
        assert engine.free == engine.kv_blocks
        await until(lambda: one.worker.ended["abort"] == 2)


async def test_a_full_queue_answers_503() -> None:
    async with live(latency=SLOW, batch_slots=1, max_queued=1) as one:
        body = {"prompt": "a", "max_tokens": 4, "ignore_eos": True}
        asked = [asyncio.create_task(one.post(COMPLETIONS, body))]
        await until(lambda: one.worker.engine.running == 1)
        asked.append(asyncio.create_task(one.post(COMPLETIONS, body)))
        await until(lambda: len(one.worker.engine.waiting) == 1)
        assert (await one.post(COMPLETIONS, body))[0] == 503
        assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]
