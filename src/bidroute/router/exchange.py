"""One client's request on its way: what is known of it, and its answer being followed as it comes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from aiohttp import web

from bidroute.router.answer import Answer
from bidroute.router.attempts import broken, failed_stream
from bidroute.router.client_answer import ClientAnswer
from bidroute.router.open_ticket import OpenTicket
from bidroute.router.prefill_bodies import decode_body
from bidroute.router.request_body import BodyFacts
from bidroute.router.sse import SseScanner, Usage
from bidroute.router.tracing import Trace
from bidroute.router.upstream import Call
from bidroute.router.watchdog import Watch

_EVENT_STREAM = b"text/event-stream"
_NO_USAGE = Usage()


@dataclass(slots=True, eq=False)
class Exchange:
    """`response` is there once bytes may have gone to the client, `prefill_worker` where one has processed the prompt.

    `failed_attempts` were made. Times are the loop's, in seconds.
    """

    request: web.BaseRequest
    request_id: str
    path: str
    body: bytes
    facts: BodyFacts
    ticket: OpenTicket
    arrived_s: float
    hides_usage: bool
    trace: Trace
    failed_attempts: int = 0
    status: int = 0
    released_s: float = math.nan
    started_s: float = math.nan
    usage: Usage = _NO_USAGE
    response: ClientAnswer | None = None
    prefilled_s: float = math.nan
    prefill_worker: str | None = None

    def decode_body(self) -> bytes:
        """The body for the worker that decodes; one that prefills as well gets it as it is."""
        params = self.ticket.fetched_with
        return self.body if params is None else decode_body(self.body, params)

    def finished(self, usage: Usage | None) -> None:
        """The worker said all there is to say; `usage` where it told."""
        self.usage = usage or self.usage
        self.ticket.finished(self.usage.prompt_tokens, self.usage.completion_tokens)

    def client_answer(self, answer: Answer, worker_name: str) -> ClientAnswer:
        """The beginning of this worker's answer to the client."""
        self.status = answer.status
        return ClientAnswer(self.request, answer, self.request_id, worker_name)


class Follower:
    """Passes a stream's events on in the call in which they arrive, and tells the dispatcher how far it is."""

    __slots__ = ("_exchange", "_now", "_scanner", "_stall_s", "_watch", "_worker_name")

    def __init__(self, exchange: Exchange, worker_name: str, watch: Watch, stall_s: float) -> None:
        self._exchange = exchange
        self._worker_name = worker_name
        self._watch = watch
        self._stall_s = stall_s
        self._scanner: SseScanner | None = None
        self._now = asyncio.get_running_loop().time

    def received(self, call: Call, data: bytes) -> None:
        """Bytes of the body. Raises AttemptError for an error in the stream, and ClientGoneError."""
        scanner = self._scanner
        if scanner is None:
            answer = call.answer
            if not (200 <= answer.status < 300 and answer.content_type.startswith(_EVENT_STREAM)):
                call.pieces.append(data)
                return
            scanner = self._scanner = SseScanner(self._exchange.hides_usage)
        events = scanner.feed(data)
        if scanner.events:
            self._progressed(scanner)
        if events:
            self._pass_on(call.answer, events)
        if scanner.error is not None:
            raise failed_stream(scanner.error.status, scanner.error.payload)

    def _progressed(self, scanner: SseScanner) -> None:
        exchange, now_s = self._exchange, self._now()
        self._watch.deadline_s = now_s + self._stall_s
        if math.isnan(exchange.started_s):
            exchange.started_s = now_s
            exchange.ticket.started()
            exchange.trace.first_output()
        exchange.ticket.progressed(scanner.output_tokens)
        if scanner.done:  # many clients leave here, before the stream's very end
            exchange.finished(scanner.usage)

    def _pass_on(self, answer: Answer, events: bytes) -> None:
        exchange = self._exchange
        if exchange.response is None:
            exchange.response = exchange.client_answer(answer, self._worker_name)
            exchange.body = b""  # it cannot be tried again, and may be large
        exchange.response.write_piece(events)

    def pause(self, paused: bool) -> None:
        """The client is slow to read, or reads again: its worker waits, and is not to blame."""
        self._watch.call.pause(paused)
        self._watch.on_client = paused
        self._watch.deadline_s = self._now() + self._stall_s

    @property
    def said_all(self) -> bool:
        """Whether the stream's last event was seen, so that it matters no more how the connection ends."""
        return self._scanner is not None and self._scanner.done

    def ended(self, call: Call) -> ClientAnswer | None:
        """The answer's end; None where it was no stream of events. Raises AttemptError where it broke off."""
        scanner, exchange = self._scanner, self._exchange
        if scanner is None:
            return None
        if not scanner.done and (scanner.rest() or not call.answer.framed):
            raise broken(EOFError())
        exchange.finished(scanner.usage)
        response = exchange.response or exchange.client_answer(call.answer, self._worker_name)
        exchange.response = response
        response.end()
        return response
