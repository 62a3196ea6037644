"""The real `openai` package through the router: streaming, leaving early, errors."""

from __future__ import annotations

import asyncio
import json

import pytest

from bidroute.router.tickets import Failure, RefusedError
from tests.router.fakes import COMPLETION, DONE, USAGE, USAGE_EVENT, FakeWorker, Router, answers, router, streams

openai = pytest.importorskip("openai", reason="the openai package is not installed")

MESSAGES = [{"role": "user", "content": "hello"}]


def client(routed: Router, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=routed.url + "/v1", api_key="none", max_retries=retries)


def delta(**fields: str) -> bytes:
    value = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return b"data: " + json.dumps(value | {"choices": [{"index": 0, "delta": fields}]}).encode() + b"\n\n"


TALK = (delta(role="assistant", content=""), delta(content="a"), delta(content="b"))


async def test_a_chat_streams() -> None:
    async with FakeWorker(streams(*TALK, USAGE_EVENT, DONE)).running() as worker, router(worker) as routed:
        async with client(routed) as api:
            stream = await api.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ab"
            asked = await api.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            last = [chunk async for chunk in asked][-1]
            assert last.usage is not None
            assert last.usage.completion_tokens == USAGE["completion_tokens"]
        assert routed.dispatcher.ends == [("finished", 7, 5)] * 2


async def test_a_completion_and_the_models() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed, client(routed) as api:
        answer = await api.completions.with_raw_response.create(model="tiny", prompt="hello")
        assert answer.parse().choices[0].text == "hello"
        assert answer.headers["x-bidroute-worker"] == "a"
        assert [model.id async for model in await api.models.list()] == ["tiny", "a"]


async def test_leaving_early_cancels_the_worker() -> None:
    async with FakeWorker(streams(*TALK, 5.0)).running() as worker, router(worker) as routed, client(routed) as api:
        stream = await api.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await asyncio.wait_for(worker.cut_off.wait(), 1)
        await routed.dispatcher.settled()
        assert routed.dispatcher.ends == [("cancelled",)]


async def test_errors_are_the_packages_own() -> None:
    error = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}
    async with FakeWorker(answers(error, 400)).running() as worker, router(worker) as routed, client(routed) as api:
        with pytest.raises(openai.BadRequestError, match="too long"):
            await api.completions.create(model="tiny", prompt="hello")
        routed.dispatcher.refusal = RefusedError(429, "queue_full", "the queue is full", 1.0)
        with pytest.raises(openai.RateLimitError, match="the queue is full") as limited:
            await api.completions.create(model="tiny", prompt="hello")
        assert limited.value.code == "queue_full"
        with pytest.raises(openai.NotFoundError):
            await api.files.list()


async def test_death_in_mid_stream_is_an_error_there() -> None:
    behave = streams(*TALK, 0.05, ConnectionError)
    async with FakeWorker(behave).running() as worker, router(worker) as routed, client(routed) as api:
        stream = await api.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="connection to the worker failed"):
            async for _ in stream:
                pass
        assert routed.dispatcher.ends == [("failed", Failure.FAULT)]
