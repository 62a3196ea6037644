"""Traces of requests, kept in memory instead of sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from bidroute.errors import ConfigError
from bidroute.router.http_settings import HttpSettings
from bidroute.router.serve import Listener
from bidroute.router.settings import RouterSettings, checked
from bidroute.router.tickets import RefusedError
from bidroute.router.tracing import NO_TRACING, OpenTelemetryTracing, open_tracing
from tests.router.fakes import DONE, USAGE_EVENT, FakeDispatcher, FakeWorker, Router, answers, chunk, streams

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
from opentelemetry.sdk.trace import ReadableSpan  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRETS = {"Authorization": "Bearer sk-secret", "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
BODY = {"model": "tiny", "prompt": "a secret prompt", "stream": True}


@asynccontextmanager
async def traced(*workers: FakeWorker) -> AsyncIterator[tuple[Router, InMemorySpanExporter]]:
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    dispatcher, tracing = FakeDispatcher([worker.worker for worker in workers]), OpenTelemetryTracing(provider)
    async with Listener(dispatcher, HttpSettings(port=0), None, tracing) as listener:
        yield Router(listener, dispatcher), exporter
        await dispatcher.settled()
    tracing.close()


async def post(routed: Router, body: object = BODY, leave_s: float | None = None) -> int:
    async with (
        aiohttp.ClientSession() as session,
        asyncio.timeout(leave_s),
        session.post(f"{routed.url}/v1/completions", json=body, headers=SECRETS) as answer,
    ):
        await answer.read()
        return answer.status


async def spans(exporter: InMemorySpanExporter, count: int) -> list[ReadableSpan]:
    """Those that have ended, in order of their beginning."""
    async with asyncio.timeout(3):
        while len(exporter.get_finished_spans()) < count:
            await asyncio.sleep(0.01)
    found = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
    assert len(found) == count
    told = repr([(span.name, dict(span.attributes or {}), span.events) for span in found])
    assert "secret" not in told
    return found


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    return f"{span.parent.span_id:016x}"


async def test_a_request_its_wait_and_its_upstream_are_spans_of_the_clients_trace() -> None:
    async with (
        FakeWorker(streams(chunk("a"), chunk("b"), USAGE_EVENT, DONE)).running() as worker,
        traced(worker) as (routed, exporter),
    ):
        assert await post(routed) == 200
        root, wait, upstream = await spans(exporter, 3)
        assert [root.name, wait.name, upstream.name] == ["POST /v1/completions", "wait", "upstream"]
        assert parent_of(root) == PARENT_ID
        assert parent_of(wait) == parent_of(upstream) == f"{root.context.span_id:016x}"
        assert dict(root.attributes or {}) | {"bidroute.request_id": ""} == {
            "http.request.method": "POST",
            "http.route": "/v1/completions",
            "bidroute.request_id": "",
            "bidroute.outcome": "finished",
            "bidroute.attempts": 1,
            "http.response.status_code": 200,
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 5,
        }
        assert (upstream.attributes or {})["bidroute.worker"] == "a"
        assert [event.name for event in upstream.events] == ["first output"]
        given = worker.headers[0].getall("traceparent")
        assert given == [f"00-{TRACE_ID}-{upstream.context.span_id:016x}-01"]


async def test_every_attempt_is_a_span() -> None:
    async with (
        FakeWorker(answers({"error": {"message": "secret"}}, 500)).running() as bad,
        FakeWorker(streams(chunk("a"), DONE), "b").running() as good,
        traced(bad, good) as (routed, exporter),
    ):
        assert await post(routed) == 200
        root, _, first, _, second = await spans(exporter, 5)
        assert (first.attributes or {})["error.type"] == "fault"
        assert not first.status.is_ok
        assert root.status.is_ok
        assert (second.attributes or {})["bidroute.attempt"] == 2
        assert (root.attributes or {})["bidroute.attempts"] == 2


async def test_refusals_and_clients_that_leave_end_their_spans() -> None:
    async with FakeWorker(streams(chunk("a"), 5.0)).running() as worker, traced(worker) as (routed, exporter):
        routed.dispatcher.refusal = RefusedError(429, "queue_full", "secret", 1.0)
        assert await post(routed) == 429
        (root,) = await spans(exporter, 1)
        assert (root.attributes or {})["bidroute.outcome"] == "refused"
        exporter.clear()
        routed.dispatcher.refusal, routed.dispatcher.refusal_later = None, RefusedError(503, "waited_too_long", "x")
        assert await post(routed) == 503
        root, _ = await spans(exporter, 2)
        assert (root.attributes or {})["http.response.status_code"] == 503
        assert not root.status.is_ok
        exporter.clear()
        routed.dispatcher.refusal_later = None
        with pytest.raises(TimeoutError):
            await post(routed, leave_s=0.2)
        root, _, _ = await spans(exporter, 3)
        assert (root.attributes or {})["bidroute.outcome"] == "cancelled"


async def test_without_an_endpoint_there_are_no_traces_and_headers_pass() -> None:
    assert open_tracing(None) is NO_TRACING
    tracing = open_tracing("http://127.0.0.1:1/v1/traces")
    assert isinstance(tracing, OpenTelemetryTracing)
    tracing.close()
    with pytest.raises(ConfigError, match="otlp_endpoint 'collector:4318'; expected a URL"):
        checked(RouterSettings(otlp_endpoint="collector:4318"))
    async with FakeWorker(streams(chunk("a"), DONE)).running() as worker:
        dispatcher = FakeDispatcher([worker.worker])
        async with Listener(dispatcher, HttpSettings(port=0)) as listener:
            assert await post(Router(listener, dispatcher)) == 200
        assert worker.headers[0]["traceparent"] == SECRETS["traceparent"]
