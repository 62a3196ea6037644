"""Requests end to end: a client, the router and workers, on real sockets."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bidroute.router.tickets import Failure, RefusedError
from tests.router.fakes import (
    COMPLETION,
    DONE,
    USAGE_EVENT,
    FakeWorker,
    Router,
    answers,
    chunk,
    router,
    streams,
)

STREAM = {"model": "tiny", "prompt": "hello", "stream": True}
WHOLE = {"model": "tiny", "prompt": "hello"}


async def post(
    routed: Router, body: Any, path: str = "/v1/completions", headers: dict[str, str] | None = None
) -> tuple[int, bytes, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(routed.url + path, json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.read(), answer.headers


async def test_an_answer_passes_unchanged() -> None:
    async with FakeWorker(answers(COMPLETION, x_extra="kept")).running() as worker, router(worker) as routed:
        status, body, headers = await post(routed, WHOLE, headers={"x-request-id": "mine", "x-custom": "1"})
        assert (status, json.loads(body)) == (200, COMPLETION)
        assert (headers["x-request-id"], headers["x-bidroute-worker"], headers["x-extra"]) == ("mine", "a", "kept")
        assert json.loads(worker.bodies[0]) == WHOLE
        assert worker.headers[0]["x-custom"] == "1"
        assert routed.dispatcher.ends == [("finished", 7, 5)]
        assert ("started", 0) not in routed.dispatcher.events


async def test_a_stream_passes_without_the_usage_nobody_asked_for() -> None:
    behave = streams(chunk("a"), 0.01, chunk("b"), USAGE_EVENT + DONE)
    async with FakeWorker(behave).running() as worker, router(worker) as routed:
        status, body, headers = await post(routed, STREAM)
        assert (status, body) == (200, chunk("a") + chunk("b") + DONE)
        assert headers["Content-Type"].startswith("text/event-stream")
        assert json.loads(worker.bodies[0]) == STREAM | {"stream_options": {"include_usage": True}}
        assert routed.dispatcher.events == [("started", 0), ("finished", 7, 5)]


async def test_usage_that_was_asked_for_stays() -> None:
    asked = STREAM | {"stream_options": {"include_usage": True}}
    async with FakeWorker(streams(chunk("a"), USAGE_EVENT, DONE)).running() as worker, router(worker) as routed:
        assert (await post(routed, asked))[1] == chunk("a") + USAGE_EVENT + DONE
        assert json.loads(worker.bodies[0]) == asked


async def test_what_ends_leaves_nothing_for_the_garbage_collector() -> None:
    """The router collects seldom, so no request may leave objects behind that hold one another."""
    behave = streams(chunk("a"), 0.01, chunk("b"), USAGE_EVENT + DONE)
    async with FakeWorker(behave).running() as worker, router(worker) as routed:
        gc.collect()
        gc.disable()
        try:
            for body in (STREAM, WHOLE, STREAM):
                await post(routed, body)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [type(one).__name__ for one in gc.garbage if type(one).__module__.startswith("bidroute")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []


async def test_events_come_as_they_are_made() -> None:
    behave = streams(chunk("a"), 0.3, chunk("b")[:20], 0.01, chunk("b")[20:], DONE)
    async with FakeWorker(behave).running() as worker, router(worker) as routed, aiohttp.ClientSession() as session:
        loop = asyncio.get_running_loop()
        async with session.post(routed.url + "/v1/completions", json=STREAM) as answer:
            assert await answer.content.readany() == chunk("a")
            first_s = loop.time()
            assert await answer.content.readany()
            assert loop.time() - first_s > 0.1
        assert routed.dispatcher.tickets[0].output_tokens == 2


async def test_a_clients_fault_is_passed_on() -> None:
    error = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    async with (
        FakeWorker(answers(error, 400)).running() as one,
        FakeWorker(answers(COMPLETION), "b").running() as two,
        router(one, two) as routed,
    ):
        status, body, headers = await post(routed, WHOLE)
        assert (status, json.loads(body)) == (400, error)
        assert headers["x-bidroute-worker"] == "a"
        assert routed.dispatcher.ends == [("failed", Failure.CLIENT)]


@pytest.mark.parametrize(("status", "failure"), [(429, Failure.BACK_PRESSURE), (503, Failure.BACK_PRESSURE)])
@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_back_pressure_goes_elsewhere(status: int, failure: Failure, body: Any) -> None:
    async with (
        FakeWorker(answers({}, status)).running() as one,
        FakeWorker(streams(chunk("a"), DONE), "b").running() as two,
        router(one, two) as routed,
    ):
        code, _, headers = await post(routed, body)
        assert (code, headers["x-bidroute-worker"]) == (200, "b")
        assert routed.dispatcher.ends[0] == ("failed", failure)
        assert routed.dispatcher.ends[1][0] == "finished"


@pytest.mark.parametrize("behave", [answers({}, 500), answers({}, 302), streams(ConnectionError), streams(0.6)])
async def test_a_fault_before_the_first_byte_goes_elsewhere(behave: Any) -> None:
    async with (
        FakeWorker(behave).running() as one,
        FakeWorker(streams(chunk("a"), DONE), "b").running() as two,
        router(one, two, first_byte_timeout_s=0.2) as routed,
    ):
        code, body, headers = await post(routed, STREAM)
        assert (code, body, headers["x-bidroute-worker"]) == (200, chunk("a") + DONE, "b")
        assert routed.dispatcher.ends[0][1] in (Failure.FAULT, Failure.STALLED)
        assert routed.dispatcher.ends[1][0] == "finished"


async def test_an_error_in_the_stream_before_any_output_goes_elsewhere() -> None:
    error = b'data: {"error":{"message":"engine died","code":500}}\n\n'
    async with (
        FakeWorker(streams(error, DONE)).running() as one,
        FakeWorker(streams(chunk("a"), DONE), "b").running() as two,
        router(one, two) as routed,
    ):
        assert (await post(routed, STREAM))[1] == chunk("a") + DONE


async def test_no_worker_there() -> None:
    worker = FakeWorker(answers(COMPLETION))
    async with router(worker, max_attempts=2) as routed:
        status, body, _ = await post(routed, WHOLE)
        assert (status, json.loads(body)["error"]["code"]) == (502, "worker_failed")
        assert routed.dispatcher.tickets[0].attempts == ["a", "a"]
        assert routed.dispatcher.ends == [("failed", Failure.FAULT)] * 2


async def test_the_last_workers_own_error_is_shown() -> None:
    async with FakeWorker(answers({"error": {"message": "full"}}, 503)).running() as worker, router(worker) as routed:
        status, body, headers = await post(routed, WHOLE)
        assert (status, json.loads(body)["error"]["message"], headers["Retry-After"]) == (503, "full", "1")


@pytest.mark.parametrize("cut", [chunk("b")[:-10], b""])
async def test_death_in_mid_stream_is_an_error_event(cut: bytes) -> None:
    behave = streams(chunk("a"), 0.05, cut, ConnectionError)
    async with (
        FakeWorker(behave).running() as worker,
        FakeWorker(answers(COMPLETION), "b").running() as spare,
        router(worker, spare) as routed,
    ):
        status, body, _ = await post(routed, STREAM)
        events = body.split(b"\n\n")
        assert (status, events[0] + b"\n\n", events[2:]) == (200, chunk("a"), [b""])
        assert json.loads(events[1].removeprefix(b"data: "))["error"]["code"] == "worker_failed"
        assert routed.dispatcher.ends == [("failed", Failure.FAULT)]
        assert not spare.bodies


async def test_an_error_event_in_mid_stream_is_passed_on_and_ends_it() -> None:
    error = b'data: {"error":{"message":"engine died","code":500}}\n\n'
    async with FakeWorker(streams(chunk("a") + error, DONE)).running() as worker, router(worker) as routed:
        assert (await post(routed, STREAM))[1] == chunk("a") + error
        assert routed.dispatcher.ends == [("failed", Failure.FAULT)]


async def test_a_stalled_stream_ends_in_an_error_event() -> None:
    async with (
        FakeWorker(streams(chunk("a"), 3.0)).running() as worker,
        router(worker, stall_timeout_s=0.2) as routed,
    ):
        _, body, _ = await post(routed, STREAM)
        assert body.startswith(chunk("a"))
        assert b"worker_stalled" in body
        assert routed.dispatcher.ends == [("failed", Failure.STALLED)]
        await asyncio.wait_for(worker.cut_off.wait(), 1)


async def test_a_long_prefill_is_not_death() -> None:
    async with (
        FakeWorker(streams(0.5, chunk("a"), DONE)).running() as worker,
        router(worker, stall_timeout_s=0.1) as routed,
    ):
        assert (await post(routed, STREAM))[1] == chunk("a") + DONE


async def test_a_client_that_leaves_cancels_its_worker() -> None:
    async with (
        FakeWorker(streams(chunk("a"), 5.0)).running() as worker,
        router(worker) as routed,
        aiohttp.ClientSession() as session,
    ):
        answer = await session.post(routed.url + "/v1/completions", json=STREAM)
        await answer.content.readany()
        answer.close()
        await asyncio.wait_for(worker.cut_off.wait(), 1)
        await routed.dispatcher.settled()
        assert routed.dispatcher.ends == [("cancelled",)]


@pytest.mark.parametrize("queued", [True, False])
async def test_a_client_that_leaves_before_any_answer(queued: bool) -> None:
    async with FakeWorker(streams(5.0)).running() as worker, router(worker) as routed:
        if queued:
            routed.dispatcher.gate.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", routed.listener.port)
        body = json.dumps(WHOLE).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(2):
            while not (routed.dispatcher.waiting if queued else worker.bodies):
                await asyncio.sleep(0.01)
        writer.close()
        await routed.dispatcher.settled()
        assert routed.dispatcher.ends == [("cancelled",)]
        if not queued:
            await asyncio.wait_for(worker.cut_off.wait(), 1)
        assert len(worker.bodies) == (0 if queued else 1)


async def test_a_client_that_leaves_at_done_was_served() -> None:
    async with (
        FakeWorker(streams(chunk("a"), USAGE_EVENT, DONE, 1.0)).running() as worker,
        router(worker) as routed,
        aiohttp.ClientSession() as session,
    ):
        answer = await session.post(routed.url + "/v1/completions", json=STREAM)
        async with asyncio.timeout(1):
            while DONE not in await answer.content.readany():
                pass
        answer.close()
        assert routed.dispatcher.ends == [("finished", 7, 5)]


async def test_a_client_that_does_not_read_is_not_the_workers_fault() -> None:
    flood = [chunk("x" * 100_000) for _ in range(200)]
    async with FakeWorker(streams(*flood)).running() as worker, router(worker, stall_timeout_s=0.3) as routed:
        reader, writer = await asyncio.open_connection("127.0.0.1", routed.listener.port, limit=1024)
        body = json.dumps(STREAM).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.sleep(0.1)
        await routed.dispatcher.settled()
        assert routed.dispatcher.ends == [("cancelled",)]
        cut_off = await asyncio.wait_for(reader.read(), 2)
        assert not cut_off.endswith(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("later", [True, False])
async def test_a_refusal_says_why_and_when_to_come_back(later: bool) -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        refusal = RefusedError(429, "queue_full", "1000 requests wait, the limit", 2.4)
        if later:
            routed.dispatcher.refusal_later = refusal
        else:
            routed.dispatcher.refusal = refusal
        status, body, headers = await post(routed, WHOLE)
        error = json.loads(body)["error"]
        assert (status, headers["Retry-After"]) == (429, "3")
        assert (error["code"], error["type"], error["param"]) == ("queue_full", "rate_limit_error", None)
        assert routed.dispatcher.ends == []


async def test_trusted_hints_reach_the_job_and_others_do_not() -> None:
    hints = {"x-llm-d-slo-ttft-ms": "500", "x-llm-d-slo-tpot-ms": "20", "x-llm-d-inference-fairness-id": "team"}
    body = WHOLE | {"max_tokens": 100, "priority": 3}
    async with (
        FakeWorker(answers(COMPLETION)).running() as worker,
        router(worker) as routed,
    ):
        await post(routed, body, headers=hints | {"x-request-deadline-ms": "0.0"})
        job = routed.dispatcher.tickets[0].job
        assert (job.priority, job.ttft_slo_s, job.tenant, job.max_tokens) == (0.0, float("inf"), "", 100)
        assert worker.headers[0]["x-llm-d-slo-ttft-ms"] == "500"
        async with router(worker, trusted_hints=(*hints, "priority", "x-request-deadline-ms")) as routed:
            await post(routed, body, headers=hints | {"x-request-deadline-ms": "1500"})
            job = routed.dispatcher.tickets[0].job
            assert (job.priority, job.ttft_slo_s, job.tenant, job.deadline_s) == (-3.0, 0.5, "team", 1.5)
            assert job.e2e_slo_s == pytest.approx(2.5)
            for bad in ("nan", "-1", "soon", "inf"):
                assert (await post(routed, body, headers={"x-llm-d-slo-ttft-ms": bad}))[0] == 400


async def test_a_batch_of_prompts_counts_as_many_sequences() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        await post(routed, {"model": "tiny", "prompt": ["ab", "abcd"], "n": 2})
        job = routed.dispatcher.tickets[0].job
        assert (job.choices, job.prompts, job.prompt_bytes) == (4, 2, 3)
        assert routed.dispatcher.ends == [("finished", 7, 5)]


async def test_workers_may_answer_http_1_0_style() -> None:
    async def closes(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + chunk("a") + DONE)
        request.transport.close()
        await asyncio.sleep(1)
        return web.Response()

    async with FakeWorker(closes).running() as worker, router(worker) as routed:
        assert (await post(routed, STREAM))[1] == chunk("a") + DONE
        assert routed.dispatcher.ends == [("finished", None, None)]


async def test_an_answer_that_is_no_json_is_passed_on() -> None:
    async def text(request: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    async with FakeWorker(text).running() as worker, router(worker) as routed:
        assert (await post(routed, WHOLE))[1] == b"hello"
        assert routed.dispatcher.ends == [("finished", None, None)]


@pytest.mark.parametrize("end", [3.0, ConnectionError])
async def test_after_the_last_event_it_matters_no_more_how_it_ends(end: Any) -> None:
    async with (
        FakeWorker(streams(chunk("a"), DONE, 0.02, end)).running() as worker,
        router(worker, stall_timeout_s=0.2) as routed,
    ):
        assert (await post(routed, STREAM))[1] == chunk("a") + DONE
        assert routed.dispatcher.ends == [("finished", None, None)]
