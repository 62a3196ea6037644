"""One priced request: wait for a worker, forward, follow the answer, try elsewhere, or stop when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol, cast

import msgspec
from aiohttp import web

from bidroute.router.answer import BadAnswerError
from bidroute.router.attempts import AttemptError, ClientGoneError, HungError, broken, refused, stalled
from bidroute.router.dispatching import Dispatching
from bidroute.router.exchange import Exchange, Follower
from bidroute.router.headers import own_headers, request_lines
from bidroute.router.hints import job_for
from bidroute.router.http_settings import HttpSettings
from bidroute.router.open_ticket import OpenTicket
from bidroute.router.prefill import Prefiller
from bidroute.router.prefill_bodies import can_split
from bidroute.router.request_body import BodyFacts, asking_for_usage
from bidroute.router.request_log import REQUESTS, RequestLine, log_request
from bidroute.router.sse import Usage
from bidroute.router.tickets import Failure, RefusedError
from bidroute.router.tracing import NO_TRACING, Tracing
from bidroute.router.upstream import Call, Upstream
from bidroute.router.watchdog import Watch, Watchdog
from bidroute.router.workers import Worker


class PausingConnection(Protocol):
    """A client's connection, which says when its buffer is full and when there is room again."""

    on_pause: Callable[[bool], None] | None


class _Answer(msgspec.Struct):
    usage: Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer, strict=False).decode


class Proxy:
    """Serves priced requests on the running loop."""

    def __init__(
        self,
        dispatcher: Dispatching,
        upstream: Upstream,
        watchdog: Watchdog,
        settings: HttpSettings,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._dispatcher = dispatcher
        self._tracing = tracing
        self._upstream = upstream
        self._watchdog = watchdog
        self._prefiller = Prefiller(upstream, watchdog, settings)
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
        splits = self._dispatcher.splits and can_split(body, facts.choices)
        job = job_for(facts, request.headers, self._settings.trusted_hints, request_id, splits)
        hides_usage = facts.stream and not facts.wants_usage
        if hides_usage:
            body = asking_for_usage(body)
        trace = self._tracing.begin(request.headers, path, request_id)
        try:
            ticket = OpenTicket(self._dispatcher, job)
        except RefusedError as refusal:
            trace.ended("refused", refusal.status)
            raise
        exchange = Exchange(request, request_id, path, body, facts, ticket, self._now(), hides_usage, trace)
        try:
            return await self._until_served(exchange)
        except ClientGoneError:
            if request.transport is not None:
                request.transport.abort()  # it may be there, and not read: nothing can be said to it any more
            return web.Response(status=499) if exchange.response is None else exchange.response
        except RefusedError as refusal:
            exchange.status = refusal.status
            raise
        finally:
            ticket.close()
            trace.ended(ticket.outcome, exchange.status, exchange.usage.prompt_tokens, exchange.usage.completion_tokens)
            self._log(exchange)

    async def _until_served(self, exchange: Exchange) -> web.StreamResponse:
        """Try workers until one serves it, bytes went to the client, or it is time to give up."""
        while True:
            exchange.trace.waits()
            worker = await exchange.ticket.released()
            try:
                if exchange.ticket.prefills:
                    await self._prefiller.prefill(exchange, worker)
                    continue
                exchange.released_s = self._now()
                return await self._attempt(exchange, worker)
            except AttemptError as problem:
                exchange.failed_attempts += 1
                exchange.ticket.failed(problem.failure, problem.detail, problem.reached)
                exchange.trace.failed(problem.failure.value, problem.status)
                if exchange.response is not None:
                    return self._broken_off(exchange, problem)
                if not problem.can_retry or exchange.failed_attempts >= self._settings.max_attempts:
                    return self._last_word(exchange, worker, problem)
                exchange.ticket.retry()

    async def _attempt(self, exchange: Exchange, worker: Worker) -> web.StreamResponse:
        """Let this worker serve it. Raises AttemptError, and ClientGoneError."""
        settings, request = self._settings, exchange.request
        streamed = exchange.facts.stream
        patience_s = settings.first_byte_timeout_s if streamed else settings.answer_timeout_s
        raw_headers = request._message.raw_headers
        headers = {**exchange.trace.sent(worker.name), **worker.headers}
        lines = request_lines(raw_headers, headers, exchange.request_id, not settings.api_keys)
        client = cast(PausingConnection, request.protocol)
        call = Call()
        exchange.ticket.ticket.stop = call.fail
        watch = self._watchdog.watch(call, self._now() + patience_s)
        follower = Follower(exchange, worker.name, watch, settings.stall_timeout_s)
        try:
            with watch:
                if streamed:
                    call.on_body = follower.received
                    client.on_pause = follower.pause
                await self._upstream.run(call, "POST", worker, exchange.path, lines, exchange.decode_body())
        except HungError as hang:
            if not follower.said_all:
                raise stalled(hang.silent_s) from None
        except TimeoutError:
            if not follower.said_all:
                raise self._silent(exchange, watch, patience_s) from None
        except (OSError, EOFError, BadAnswerError) as problem:
            if not follower.said_all:
                raise broken(problem, reached=call.connection is not None) from None
        finally:
            # They refer to one another, and to all that belongs to this request.
            call.on_body = client.on_pause = exchange.ticket.ticket.stop = None
        return follower.ended(call) or self._whole(exchange, worker, call)

    def _silent(self, exchange: Exchange, watch: Watch, patience_s: float) -> Exception:
        if watch.on_client:
            return ClientGoneError()
        return stalled(patience_s if math.isnan(exchange.started_s) else self._settings.stall_timeout_s)

    def _whole(self, exchange: Exchange, worker: Worker, call: Call) -> web.StreamResponse:
        """An answer that came as a whole. Raises AttemptError."""
        body = call.body
        if not 200 <= call.answer.status < 300:
            raise refused(call.answer, body)
        exchange.finished(_usage_of(body))
        response = exchange.response = exchange.client_answer(call.answer, worker.name)
        response.write_whole(body)
        return response

    def _broken_off(self, exchange: Exchange, problem: AttemptError) -> web.StreamResponse:
        """The worker died while the client was reading: say so in the stream, and end it.

        The connection stays: clients keep it for their next request, which must not meet a reset.
        """
        response = exchange.response
        assert response is not None
        response.write_piece(problem.event())
        response.end()
        return response

    def _last_word(self, exchange: Exchange, worker: Worker, problem: AttemptError) -> web.StreamResponse:
        """The answer when no worker served it."""
        exchange.status = problem.status
        if problem.answer is None:
            headers = own_headers(exchange.request_id, worker.name)
            return web.Response(body=problem.text(), status=problem.status, headers=headers)
        response = exchange.client_answer(problem.answer, worker.name)
        if problem.failure is Failure.BACK_PRESSURE:
            response.add_line(b"Retry-After: 1")
        response.write_whole(problem.text())
        return response

    def _log(self, exchange: Exchange) -> None:
        if not REQUESTS.isEnabledFor(logging.INFO):
            return
        ticket = exchange.ticket.ticket
        log_request(
            RequestLine(
                request_id=exchange.request_id,
                ticket=ticket.id,
                path=exchange.path.partition("?")[0],
                outcome=exchange.ticket.outcome,
                status=exchange.status,
                worker=ticket.attempts[-1] if ticket.attempts else None,
                attempts=ticket.attempts,
                released_after_s=_rounded(exchange.released_s - exchange.arrived_s),
                first_output_after_s=_rounded(exchange.started_s - exchange.arrived_s),
                total_s=_rounded(self._now() - exchange.arrived_s),
                prompt_tokens=exchange.usage.prompt_tokens,
                output_tokens=exchange.usage.completion_tokens,
                tenant=ticket.job.tenant,
                prefill_worker=exchange.prefill_worker,
                prefilled_after_s=_rounded(exchange.prefilled_s - exchange.arrived_s),
            )
        )


def _usage_of(body: bytes) -> Usage | None:
    try:
        answer: _Answer = _decode_answer(body)
    except msgspec.MsgspecError:
        return None
    return answer.usage


def _rounded(seconds: float) -> float | None:
    return None if math.isnan(seconds) else int(seconds * 1e4 + 0.5) / 1e4
