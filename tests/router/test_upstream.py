"""Connections to workers: kept, found stale, paused, encrypted."""

from __future__ import annotations

import asyncio
import io
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any

import aiohttp
import pytest

from bidroute.router.http_settings import HttpSettings
from bidroute.router.upstream import Call, ConnectFailedError, Upstream
from bidroute.router.workers import Worker
from tests.router.fakes import COMPLETION, DONE, FakeWorker, answers, chunk, router, streams

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(handle: Serving) -> AsyncIterator[tuple[Upstream, Worker]]:
    """A worker written by hand, and connections to it."""
    running: set[asyncio.Task[Any]] = set()

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
            await handle(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handled, "127.0.0.1", 0)
    upstream = Upstream(HttpSettings())
    yield upstream, Worker("a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await upstream.close()
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    server.close()


async def called(upstream: Upstream, worker: Worker) -> bytes:
    call = Call()
    await upstream.run(call, "GET", worker, "/", b"", b"")
    return call.body


async def test_connections_are_kept_and_one_found_closed_is_replaced() -> None:
    connections = 0

    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
        if connections == 1:
            await reader.readuntil(b"\r\n\r\n")  # a third request, and the line goes dead

    async with serving(twice) as (upstream, worker):
        assert [await called(upstream, worker) for _ in range(2)] == [b"ok"] * 2
        assert connections == 1
        assert await called(upstream, worker) == b"ok"
        assert connections == 2


async def test_a_new_connection_that_dies_is_a_fault() -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with serving(dies) as (upstream, worker):
        with pytest.raises(EOFError):
            await called(upstream, worker)
    with pytest.raises(ConnectFailedError):
        await called(upstream, worker)


async def test_bytes_nobody_asked_for_are_not_the_next_answer() -> None:
    connections = 0

    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(0.02)
        writer.write(OK.replace(b"ok", b"no"))
        await asyncio.sleep(0.2)

    async with serving(talkative) as (upstream, worker):
        assert await called(upstream, worker) == b"ok"
        await asyncio.sleep(0.05)
        assert await called(upstream, worker) == b"ok"
        assert connections == 2


async def test_a_slow_reader_gets_every_byte_and_pauses_its_worker() -> None:
    pieces = [chunk(str(number) * 20_000) for number in range(100)]
    async with (
        FakeWorker(streams(*pieces, DONE)).running() as worker,
        router(worker) as routed,
        aiohttp.ClientSession(read_bufsize=2**12) as session,
        session.post(routed.url + "/v1/completions", json={"prompt": "x", "stream": True}) as answer,
    ):
        await asyncio.sleep(0.2)
        assert await answer.read() == b"".join(pieces) + DONE
    assert routed.dispatcher.ends == [("finished", None, None)]


async def test_a_large_body_arrives_whole() -> None:
    body = b'{"prompt":"' + b"x" * 5_000_000 + b'"}'
    async with (
        FakeWorker(answers(COMPLETION)).running() as worker,
        router(worker) as routed,
        aiohttp.ClientSession() as session,
        session.post(routed.url + "/v1/completions", data=io.BytesIO(body)) as answer,
    ):
        assert answer.status == 200
        assert worker.bodies == [body]
        assert routed.dispatcher.tickets[0].job.prompt_bytes == 5_000_000


async def test_the_query_and_the_workers_own_path_are_kept() -> None:
    async with FakeWorker(answers(COMPLETION)).running() as worker:
        worker.worker.url += "/engine/"
        async with (
            router(worker) as routed,
            aiohttp.ClientSession() as session,
            session.post(routed.url + "/v1/completions?a=b%20c", data=b'{"prompt":"x"}') as answer,
        ):
            assert answer.status == 200
        assert worker.paths == ["/engine/v1/completions?a=b%20c"]


@pytest.mark.skipif(which("openssl") is None, reason="needs openssl to make a certificate")
async def test_tls_from_clients(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command + names, check=True, capture_output=True)
    async with (
        FakeWorker(answers(COMPLETION)).running() as worker,
        router(worker, tls_certificate=certificate, tls_key=key) as inner,
    ):
        secure = Worker("inner", inner.url.replace("http", "https"))  # the router itself, as a worker behind TLS
        upstream = Upstream(HttpSettings(worker_ca=certificate))
        assert b"ready" in await _got(upstream, secure, "/ready")
        await upstream.close()
        distrusting = Upstream(HttpSettings())
        with pytest.raises((ssl.SSLError, OSError)):
            await _got(distrusting, secure, "/ready")


async def _got(upstream: Upstream, worker: Worker, path: str) -> bytes:
    call = Call()
    await upstream.run(call, "GET", worker, path, b"", b"")
    return call.body
