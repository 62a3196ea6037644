"""One priced request: wait for a worker, forward, follow the answer, try elsewhere, or stop when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec
from aiohttp import web

from bidroute.router.attempts import AttemptError, ClientGoneError, broken, failed_stream, refused, stalled
from bidroute.router.dispatching import Dispatching
from bidroute.router.headers import own_headers, request_headers, response_headers
from bidroute.router.hints import job_for
from bidroute.router.http_settings import HttpSettings
from bidroute.router.open_ticket import OpenTicket
from bidroute.router.request_body import BodyFacts, asking_for_usage
from bidroute.router.request_log import REQUESTS
from bidroute.router.sse import SseScanner, Usage
from bidroute.router.upstream import Upstream, error_answer
from bidroute.router.watchdog import Watch, Watchdog
from bidroute.router.workers import Worker

_EVENT_STREAM = "text/event-stream"
_NO_USAGE = Usage()


class _Answer(msgspec.Struct):
    usage: Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer, strict=False).decode


class PassedStream(web.StreamResponse):
    """A streamed answer; its headers wait for the first bytes and leave in one piece with them."""

    _send_headers_immediately = False


@dataclass(slots=True, eq=False)
class Exchange:
    """One client's request on its way. `response` is there once bytes may have gone to the client."""

    request: web.BaseRequest
    request_id: str
    path: str
    body: bytes
    facts: BodyFacts
    ticket: OpenTicket
    arrived_s: float
    hides_usage: bool
    attempts: int = 0
    status: int = 0
    released_s: float = math.nan
    started_s: float = math.nan
    usage: Usage = _NO_USAGE
    response: web.StreamResponse | None = None

    def finished(self, usage: Usage | None) -> None:
        """The worker said all there is to say."""
        self.usage = usage or self.usage
        prompt_tokens = self.usage.prompt_tokens
        if prompt_tokens is not None:
            prompt_tokens //= self.facts.batch
        self.ticket.finished(prompt_tokens, self.usage.completion_tokens)


class Proxy:
    """Serves priced requests on the running loop."""

    def __init__(self, dispatcher: Dispatching, upstream: Upstream, watchdog: Watchdog, settings: HttpSettings) -> None:
        self._dispatcher = dispatcher
        self._upstream = upstream
        self._watchdog = watchdog
        self._settings = settings
        self._now = asyncio.get_running_loop().time

    async def serve(
        self,
        request: web.BaseRequest,
        request_id: str,
        path: str,
        body: bytes,
        read_facts: Callable[[bytes], BodyFacts],
    ) -> web.StreamResponse:
        """The answer for this request. Raises BadBodyError and RefusedError before anything went to the client."""
        facts = read_facts(body)
        job = job_for(facts, request.headers, self._settings.trusted_hints)
        hides_usage = facts.stream and not facts.wants_usage
        if hides_usage:
            body = asking_for_usage(body)
        ticket = OpenTicket(self._dispatcher, job)
        exchange = Exchange(request, request_id, path, body, facts, ticket, self._now(), hides_usage)
        try:
            return await self._until_served(exchange)
        except ClientGoneError:
            return exchange.response or web.Response(status=499)
        finally:
            ticket.close()
            self._log(exchange)

    async def _until_served(self, exchange: Exchange) -> web.StreamResponse:
        """Try workers until one serves it, bytes went to the client, or it is time to give up."""
        while True:
            worker = await exchange.ticket.released()
            exchange.released_s = self._now()
            exchange.attempts += 1
            try:
                return await self._attempt(exchange, worker)
            except AttemptError as problem:
                exchange.ticket.failed(problem.failure, problem.detail)
                if exchange.response is not None:
                    return await self._broken_off(exchange, exchange.response, problem)
                if not problem.can_retry or exchange.attempts >= self._settings.max_attempts:
                    return self._last_word(exchange, worker, problem)
                exchange.ticket.retry()

    async def _attempt(self, exchange: Exchange, worker: Worker) -> web.StreamResponse:
        """Let this worker serve it. Raises AttemptError, and ClientGoneError."""
        settings, streamed = self._settings, exchange.facts.stream
        patience_s = settings.first_byte_timeout_s if streamed else settings.answer_timeout_s
        headers = request_headers(exchange.request.headers, worker.headers, exchange.request_id, not settings.api_keys)
        watch: Watch | None = None
        try:
            async with asyncio.timeout(None) as timer:
                with self._watchdog.watch(self._now() + patience_s, timer) as watch:
                    async with await self._upstream.send(
                        "POST", worker, exchange.path, headers, exchange.body
                    ) as answer:
                        return await self._answered(exchange, worker, answer, watch)
        except (aiohttp.ClientError, OSError) as problem:
            if isinstance(problem, TimeoutError) and not isinstance(problem, aiohttp.ClientError):
                raise self._silent(exchange, watch, patience_s) from None
            raise broken(problem) from None

    def _silent(self, exchange: Exchange, watch: Watch | None, patience_s: float) -> Exception:
        if watch is not None and watch.on_client:
            return ClientGoneError()
        return stalled(patience_s if math.isnan(exchange.started_s) else self._settings.stall_timeout_s)

    async def _answered(
        self, exchange: Exchange, worker: Worker, answer: aiohttp.ClientResponse, watch: Watch
    ) -> web.StreamResponse:
        headers = response_headers(answer.headers, worker.name, exchange.request_id)
        if not 200 <= answer.status < 300:
            raise refused(answer.status, headers, await error_answer(answer))
        exchange.status = answer.status
        if exchange.facts.stream and answer.headers.get("Content-Type", "").startswith(_EVENT_STREAM):
            response = PassedStream(status=answer.status, reason=answer.reason, headers=headers)
            await self._follow(exchange, answer, response, watch)
            return response
        body = await answer.read()
        exchange.finished(_usage_of(body))
        return web.Response(body=body, status=answer.status, reason=answer.reason, headers=headers)

    async def _follow(
        self, exchange: Exchange, answer: aiohttp.ClientResponse, response: web.StreamResponse, watch: Watch
    ) -> None:
        """Pass the stream's events on as they come, and say how far it is."""
        scanner, ticket, now = SseScanner(exchange.hides_usage), exchange.ticket, self._now
        stall_s, read = self._settings.stall_timeout_s, answer.content.readany
        while data := await read():
            events = scanner.feed(data)
            if scanner.events:
                watch.deadline_s = now() + stall_s
                if math.isnan(exchange.started_s):
                    exchange.started_s = now()
                    ticket.started()
                ticket.progressed(scanner.output_tokens)
                if scanner.done:  # many clients leave here, before the stream's very end
                    exchange.finished(scanner.usage)
            if events:
                watch.on_client = True
                await self._to_client(exchange, response, events)
                watch.on_client = False
            if scanner.error is not None:
                raise failed_stream(scanner.error.status, scanner.error.payload)
        framed = "Transfer-Encoding" in answer.headers or "Content-Length" in answer.headers
        if not scanner.done and (scanner.rest() or not framed):
            raise broken(EOFError())
        exchange.finished(scanner.usage)
        if exchange.response is None:
            await self._to_client(exchange, response, b"")

    async def _to_client(self, exchange: Exchange, response: web.StreamResponse, events: bytes) -> None:
        """Write to the client; its failures are no fault of the worker's."""
        try:
            if exchange.response is None:
                exchange.response = response
                await response.prepare(exchange.request)
            await response.write(events)
        except (OSError, aiohttp.ClientError) as problem:
            if isinstance(problem, TimeoutError):
                raise
            raise ClientGoneError from None

    async def _broken_off(
        self, exchange: Exchange, response: web.StreamResponse, problem: AttemptError
    ) -> web.StreamResponse:
        """The worker died while the client was reading: say so in the stream, and end it."""
        response.force_close()
        await self._to_client(exchange, response, problem.event())
        return response

    def _last_word(self, exchange: Exchange, worker: Worker, problem: AttemptError) -> web.StreamResponse:
        """The answer when no worker served it."""
        exchange.status = problem.status
        headers = problem.headers or own_headers(exchange.request_id, worker.name)
        return web.Response(body=problem.answer(), status=problem.status, headers=headers)

    def _log(self, exchange: Exchange) -> None:
        if not REQUESTS.isEnabledFor(logging.INFO):
            return
        ticket = exchange.ticket.ticket
        fields = {
            "request_id": exchange.request_id,
            "ticket": ticket.id,
            "path": exchange.path,
            "outcome": exchange.ticket.outcome,
            "status": exchange.status,
            "worker": ticket.worker.name if ticket.worker is not None else None,
            "attempts": ticket.attempts,
            "released_after_s": _rounded(exchange.released_s - exchange.arrived_s),
            "first_output_after_s": _rounded(exchange.started_s - exchange.arrived_s),
            "total_s": _rounded(self._now() - exchange.arrived_s),
            "prompt_tokens": exchange.usage.prompt_tokens,
            "output_tokens": exchange.usage.completion_tokens,
        }
        REQUESTS.info("request", extra={"fields": fields})


def _usage_of(body: bytes) -> Usage | None:
    try:
        answer: _Answer = _decode_answer(body)
    except msgspec.MsgspecError:
        return None
    return answer.usage


def _rounded(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds, 4)
