"""The port: routes, keys, limits, and bytes that are no proper HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import aiohttp
import pytest

from tests.router.fakes import COMPLETION, DONE, FakeWorker, Router, answers, chunk, raw, router, streams

BODY = b'{"model":"tiny","prompt":"hello"}'
PATH = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


async def call(routed: Router, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, routed.url + path, **options) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def test_health_ready_and_unknown_paths() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        assert (await call(routed, "GET", "/health"))[0] == 200
        assert (await call(routed, "GET", "/ready"))[0] == 200
        assert (await call(routed, "GET", "/nowhere"))[0] == 404
        status, error, headers = await call(routed, "DELETE", "/v1/completions")
        assert (status, error["error"]["code"]) == (405, "method_not_allowed")
        assert len(headers["x-request-id"]) == 24
        routed.dispatcher.workers.clear()
        assert (await call(routed, "GET", "/ready"))[0] == 503


async def test_models_are_everyones() -> None:
    async with FakeWorker(answers({}), "a").running() as one, FakeWorker(answers({}), "b").running() as two:
        dead = FakeWorker(answers({}), "dead")
        async with router(one, dead, two) as routed:
            _, models, _ = await call(routed, "GET", "/v1/models")
            assert sorted(model["id"] for model in models["data"]) == ["a", "b", "tiny"]
            assert next(model for model in models["data"] if model["id"] == "tiny")["owned_by"] == "a"


async def test_embeddings_pass_without_a_ticket() -> None:
    async with FakeWorker(answers({"data": [1]})).running() as worker, router(worker) as routed:
        status, body, headers = await call(routed, "POST", "/v1/embeddings", json={"model": "e", "input": "x"})
        assert (status, body, headers["x-bidroute-worker"]) == (200, {"data": [1]}, "a")
        assert (await call(routed, "POST", "/v1/embeddings", data=b"[1]"))[0] == 400
        assert routed.dispatcher.tickets == []
    async with router(FakeWorker(answers({}))) as routed:
        assert (await call(routed, "POST", "/v1/embeddings", json={}))[0] == 502
        routed.dispatcher.workers.clear()
        assert (await call(routed, "POST", "/v1/embeddings", json={}))[0] == 503


async def test_keys() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker:
        worker.worker.headers["Authorization"] = "Bearer workers-own"
        async with router(worker, api_keys=("one", "two")) as routed:
            for given in ("", "Bearer", "Bearer three", "Basic one", "Bearer one two", "Bearer öne"):
                headers = {"Authorization": given} if given else {}
                status, error, _ = await call(routed, "POST", "/v1/completions", data=BODY, headers=headers)
                assert (status, error["error"]["type"]) == (401, "authentication_error")
            assert (await call(routed, "GET", "/v1/models"))[0] == 401
            assert (await call(routed, "GET", "/health"))[0] == 200
            for key in ("one", "two"):
                headers = {"authorization": f"Bearer {key}"}
                assert (await call(routed, "POST", "/v1/completions", data=BODY, headers=headers))[0] == 200
            assert worker.headers[-1]["Authorization"] == "Bearer workers-own"
            del worker.worker.headers["Authorization"]
            await call(routed, "POST", "/v1/completions", data=BODY, headers=headers)
            assert "Authorization" not in worker.headers[-1]
        async with router(worker) as routed:
            await call(routed, "POST", "/v1/completions", data=BODY, headers=headers)
            assert worker.headers[-1]["Authorization"] == "Bearer two"


async def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    behave = answers(COMPLETION, Connection="x-secret", x_secret="1", Keep_Alive="timeout=9", x_kept="2")
    async with FakeWorker(behave).running() as worker, router(worker) as routed:
        answer = await raw(
            routed.listener.port,
            PATH + b"Connection: close, x-mine\r\nx-mine: 1\r\nTE: trailers\r\nProxy-Authorization: x\r\nx-other: 3\r\n"
            b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
        )
        seen = {name.lower() for name in worker.headers[0]}
        assert not seen & {"x-mine", "te", "proxy-authorization", "transfer-encoding", "user-agent", "accept"}
        assert worker.headers[0]["x-other"] == "3"
        head = answer.split(b"\r\n\r\n")[0].lower()
        assert b"x-kept: 2" in head
        assert b"x-secret" not in head
        assert b"keep-alive" not in head


async def test_an_unusable_request_id_is_replaced() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        headers = {"x-request-id": "a" * 200}
        _, _, got = await call(routed, "POST", "/v1/completions", data=BODY, headers=headers)
        assert len(got["x-request-id"]) == 24
        assert worker.headers[0]["x-request-id"] == got["x-request-id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"", None),
        (b"[]", None),
        (b'{"model":1}', "model"),
        (b'{"prompt":{}}', "prompt"),
        (b"\xff", None),
    ],
)
async def test_bad_json_is_a_400(body: bytes, param: str | None) -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        status, error, _ = await call(routed, "POST", "/v1/completions", data=body)
        assert (status, error["error"]["type"], error["error"]["param"]) == (400, "invalid_request_error", param)
        assert not worker.bodies


async def test_large_bodies() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker, max_body_bytes=1000) as routed:
        port = routed.listener.port
        told = await raw(port, PATH + b"Content-Length: 100000000\r\n\r\n{")
        chunked = await raw(port, PATH + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n")
        whole = await raw(port, PATH + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001)
        for answer in (told, chunked, whole):
            assert status_of(answer) == 413
            assert b"body_too_large" in answer
        assert not worker.bodies


async def test_chunked_and_expected_bodies_arrive_whole() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (BODY[:5], BODY[5:])) + b"0\r\n\r\n"
        answer = await raw(
            routed.listener.port, PATH + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces
        )
        assert status_of(answer) == 200
        assert worker.headers[0]["Content-Length"] == str(len(BODY))
        expecting = b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        reader, writer = await asyncio.open_connection("127.0.0.1", routed.listener.port)
        writer.write(PATH + expecting)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        assert status_of(await reader.read()) == 200
        writer.close()
        assert worker.bodies == [BODY, BODY]


LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
AMBIGUOUS = {
    "both lengths": PATH + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "both, other order": PATH + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
    "two lengths": PATH + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY,
    "the same length twice": PATH + LENGTH * 2 + b"\r\n" + BODY,
    "a list of lengths": PATH + b"Content-Length: 33, 33\r\n\r\n" + BODY,
    "two codings": PATH + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "identity": PATH + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
    "chunked twice": PATH + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "an odd coding": PATH + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "a folded header": PATH + b"x-a: 1\r\n folded\r\n" + LENGTH + b"\r\n" + BODY,
    "a folded coding": PATH + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKS,
    "space before the colon": PATH + b"Content-Length : 33\r\n\r\n" + BODY,
    "a sign": PATH + b"Content-Length: +33\r\n\r\n" + BODY,
    "hexadecimal": PATH + b"Content-Length: 0x21\r\n\r\n" + BODY,
    "negative": PATH + b"Content-Length: -1\r\n\r\n" + BODY,
    "huge": PATH + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY,
    "bad chunk size": PATH + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY,
    "negative chunk": PATH + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + BODY,
    "no line end after a chunk": PATH + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "a null in a header": PATH + b"x-a: \x00\r\n" + LENGTH + b"\r\n" + BODY,
    "a bare carriage return": PATH + b"x-a: b\rc: d\r\n" + LENGTH + b"\r\n" + BODY,
    "chunked for HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "another version": b"POST /v1/completions HTTP/3.7\r\nHost: x\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "compressed": PATH + b"Content-Encoding: gzip\r\n" + LENGTH + b"\r\n" + BODY,
    "an odd expectation": PATH + b"Expect: 200-ok\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
async def test_ambiguous_and_malformed_requests_are_refused(name: str) -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        smuggled = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = await raw(routed.listener.port, AMBIGUOUS[name] + smuggled)
        assert 400 <= status_of(answer) < 500, answer
        assert (
            len(re.findall(rb"HTTP/1\.[01] \d{3}", answer)) == 1
        )  # the connection was closed, and nothing after it read
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]
        assert not worker.bodies
        assert (await call(routed, "GET", "/health"))[0] == 200


async def test_huge_headers() -> None:
    async with router(FakeWorker(answers({}))) as routed:
        port = routed.listener.port
        long = await raw(port, PATH + b"x-a: " + b"b" * 100_000 + b"\r\n\r\n")
        many = await raw(port, PATH + b"".join(b"x-%d: 1\r\n" % n for n in range(500)) + b"\r\n")
        path = await raw(port, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert {status_of(answer) for answer in (long, many, path)} <= {400, 414, 431}


@pytest.mark.parametrize(
    "data", [b"", b"POST", PATH, PATH + b"Content-Length: 33\r\n\r\n{", PATH + LENGTH + b"\r\n" + BODY]
)
async def test_half_closed_sockets_do_not_hang(data: bytes) -> None:
    async with FakeWorker(streams(chunk("a"), 0.05, DONE)).running() as worker, router(worker) as routed:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        await raw(routed.listener.port, data, wait_s=3.0, half_close=True)
        assert loop.time() - begin_s < 2.0
        await routed.dispatcher.settled()


async def test_a_body_that_never_comes() -> None:
    async with router(FakeWorker(answers({})), body_timeout_s=0.1) as routed:
        answer = await raw(routed.listener.port, PATH + b"Content-Length: 33\r\n\r\n{")
        assert status_of(answer) == 408


async def test_a_connection_serves_many_requests_in_order() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:
        one = PATH + LENGTH + b"\r\n" + BODY
        answer = await raw(routed.listener.port, one * 5 + one.replace(b"Host: x", b"Host: x\r\nConnection: close"))
        assert answer.count(b"HTTP/1.1 200 OK") == 6


async def test_draining_lets_requests_end_and_takes_no_more() -> None:
    behave = streams(chunk("a"), 0.4, DONE)
    async with FakeWorker(behave).running() as worker, router(worker) as routed, aiohttp.ClientSession() as session:
        assert (await call(routed, "GET", "/health"))[0] == 200
        answer = await session.post(routed.url + "/v1/completions", json={"prompt": "x", "stream": True})
        reader, writer = await asyncio.open_connection("127.0.0.1", routed.listener.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"}")
        draining = asyncio.ensure_future(routed.listener.drain())
        await asyncio.sleep(0.05)
        writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"503" in await reader.readuntil(b"\r\n")
        writer.close()
        assert DONE in await answer.read()
        assert await draining
    assert routed.dispatcher.ends == [("finished", None, None)]


async def test_a_mistake_of_the_routers_own_is_a_500_and_names_no_text(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker) as routed:

        def broken(job: object) -> None:
            raise KeyError("boom")

        routed.dispatcher.submit = broken  # type: ignore[method-assign, assignment]
        with caplog.at_level(logging.ERROR):
            status, error, _ = await call(routed, "POST", "/v1/completions", data=BODY)
        assert (status, error["error"]["type"]) == (500, "server_error")
        assert "boom" not in json.dumps(error)


async def test_nothing_a_client_says_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = "SECRET" * 3
    async with FakeWorker(answers(COMPLETION | {"x": secret})).running() as worker, router(worker) as routed:
        with caplog.at_level(logging.DEBUG, logger="bidroute"):
            headers = {"Authorization": secret, "x-request-id": "id-1"}
            body = {"model": secret, "prompt": secret, "user": secret}
            await call(routed, "POST", f"/v1/completions?{secret}", json=body, headers=headers)
            await call(routed, "POST", "/v1/completions", data=b"{" + secret.encode())
            await raw(routed.listener.port, PATH + secret.encode() + b"\x00: x\r\n\r\n")
    from bidroute.router.request_log import JsonLines

    lines = [JsonLines().format(record) for record in caplog.records if record.name.startswith("bidroute")]
    assert not any(secret in line for line in lines)
    told = json.loads(next(line for line in lines if "id-1" in line))
    assert (told["event"], told["outcome"], told["worker"], told["output_tokens"]) == ("request", "finished", "a", 5)
    assert "tenant" not in told


async def test_a_trusted_tenant_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hint = "x-llm-d-inference-fairness-id"
    async with FakeWorker(answers(COMPLETION)).running() as worker, router(worker, trusted_hints=(hint,)) as routed:
        with caplog.at_level(logging.INFO, logger="bidroute"):
            await call(routed, "POST", "/v1/completions", json={"model": "m", "prompt": "a"}, headers={hint: "team-a"})
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    assert record.fields["tenant"] == "team-a"
