"""The worker's HTTP side: OpenAI endpoints in front of an engine."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import msgspec
from aiohttp import web

from bidroute.simulator.latency import parse_decode_latency, parse_prefill_latency
from bidroute.worker import bodies, replies
from bidroute.worker.bodies import Generation, RequestError
from bidroute.worker.engine import Engine, Sequence
from bidroute.worker.faults import Fault, Faults
from bidroute.worker.metrics_page import metrics_page
from bidroute.worker.replies import Replies
from bidroute.worker.runner import Runner
from bidroute.worker.settings import WorkerSettings
from bidroute.worker.transfer import FETCH_PATH, Fetch, Fetched, KvTransfer

MAX_BODY_BYTES = 64 * 2**20
EMBEDDING = [0.0] * 7 + [1.0]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkerApp:
    """One worker: its engine, and the handlers of its routes."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.faults = Faults()
        self.engine = Engine(
            settings.batch_slots,
            settings.kv_blocks,
            settings.block_size,
            settings.max_batched_tokens,
            parse_decode_latency(settings.latency),
            parse_prefill_latency(settings.prefill),
        )
        self.engine.prefill.seconds(1)  # compiled now rather than while the first request waits
        self.engine.latency.seconds(1, 1)
        self.runner = Runner(self.engine, settings.time_scale, self.faults)
        self.transfer = KvTransfer(self.engine, secrets.token_hex(8), settings.kv_lease_s)
        self.ended: Counter[str] = Counter()
        self._lengths = Random(settings.seed)

    def build(self) -> web.Application:
        """The application; it must be served with `handler_cancellation=True`, which frees the KV of who leaves."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._running)
        app.add_routes(
            [
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat_completions),
                web.post("/v1/embeddings", self.embeddings),
                web.post(FETCH_PATH, self.give_kv),
                web.post("/tokenize", self.tokenize),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/server_info", self.server_info),
                web.get("/metrics", self.metrics),
            ]
        )
        if self.settings.allow_faults:
            app.add_routes([web.post("/fault", self.set_fault)])
        return app

    async def _running(self, _app: web.Application) -> AsyncIterator[None]:
        engine = asyncio.create_task(self.runner.run())
        yield
        engine.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await engine
        await self.transfer.close()

    # --- generation -------------------------------------------------------------------------------------------

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._generate(request, chat=False)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = bodies.decode(await request.read(), self.settings)
            generation = bodies.generation(body, self.settings, self._lengths, chat=chat)
            fault = self.faults.take()
            if fault.kind == "error":
                raise RequestError(fault.status, "InternalServerError", "a fault that was asked for")
            if self.settings.max_queued is not None and len(self.engine.waiting) >= self.settings.max_queued:
                raise RequestError(503, "ServiceUnavailableError", "The server's queue is full. Try again later.")
        except RequestError as problem:
            return _refusal(problem)
        prefix = "chatcmpl" if chat else "cmpl"
        name = f"{prefix}-{request.headers.get('x-request-id') or secrets.token_hex(16)}"
        answers = Replies(generation, name, self.settings.model)
        one = generation.prompt_tokens, generation.output_tokens
        sequences = [Sequence(*one) for _ in range(generation.choices)]
        if generation.choices == 1:
            await self._prepare_kv(sequences[0], body.kv_transfer_params)
        for sequence in sequences:
            self.runner.add(sequence)
        try:
            if generation.stream:
                response = await self._stream(request, sequences, answers, fault)
            else:
                response = await self._whole(request, sequences, answers, fault)
        finally:
            for sequence in sequences:
                self._leave(sequence)
                self.ended[_why(sequence, generation)] += 1
        return response

    async def _prepare_kv(self, sequence: Sequence, transfer: bodies.Transfer | None) -> None:
        """What another worker has to do with this request's KV: it processed the prompt, or is to fetch it here."""
        if transfer is None:
            return
        sequence.keeps_kv = bool(transfer.do_remote_decode)
        if transfer.do_remote_prefill and await self.transfer.fetch(transfer, sequence.prompt):
            sequence.computed = sequence.prompt - 1  # as in vLLM, the last one is processed for its output

    def _leave(self, sequence: Sequence) -> None:
        """Whatever it still holds is free, unless it is kept to be fetched."""
        if not sequence.done:
            self.runner.cancel(sequence)
        elif sequence.keeps_kv and sequence not in self.transfer.kept.values():
            self.engine.drop_kv(sequence)

    async def _whole(
        self, request: web.Request, sequences: list[Sequence], answers: Replies, fault: Fault
    ) -> web.StreamResponse:
        tokens = Tokens(sequences)
        while not all(sequence.done for sequence in sequences):
            await tokens.more()
            if fault.kind != "none" and tokens.seen > fault.after_tokens:
                if fault.kind == "drop":
                    return _cut(request)
                return _refusal(RequestError(fault.status, "InternalServerError", "a fault that was asked for"))
        transfer, sequence = None, sequences[0]
        if sequence.keeps_kv and request.transport is not None:
            host, port = request.transport.get_extra_info("sockname")[:2]
            transfer = self.transfer.keep(answers.name, sequence, (host, port))
        return web.Response(body=answers.whole(transfer), content_type="application/json")

    async def _stream(
        self, request: web.Request, sequences: list[Sequence], answers: Replies, fault: Fault
    ) -> web.StreamResponse:
        tokens = Tokens(sequences)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        if fault.kind == "drop" and fault.after_tokens == 0:
            return _cut(request)
        await response.prepare(request)
        sent = [0] * len(sequences)
        pending = answers.opening()
        while not all(sequence.done for sequence in sequences):
            await tokens.more()
            if fault.kind != "none" and tokens.seen > fault.after_tokens:
                if fault.kind == "drop":
                    return _cut(request)
                problem = replies.error_event(fault.status, "InternalServerError", "a fault that was asked for")
                await response.write(problem + replies.DONE)
                return response
            for index, sequence in enumerate(sequences):
                if sequence.generated > sent[index]:
                    pending += answers.chunks(index, sent[index] + 1, sequence.generated)
                    sent[index] = sequence.generated
            if all(sequence.done for sequence in sequences):
                pending += answers.closing()
            await response.write(pending)
            pending = b""
        await response.write_eof()
        return response

    # --- the rest ---------------------------------------------------------------------------------------------

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings: the same vector for whatever is asked; the engine has no part in it."""
        try:
            body = bodies.decode(await request.read(), self.settings)
            texts = body.input if isinstance(body.input, list) else [body.input]
            if not texts or not all(isinstance(text, str) for text in texts):
                raise RequestError(400, "BadRequestError", "input: expected a text or a list of texts")
        except RequestError as problem:
            return _refusal(problem)
        tokens = sum(bodies.text_tokens(text, self.settings) for text in texts)
        data = [{"object": "embedding", "index": i, "embedding": EMBEDDING} for i in range(len(texts))]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": data, "model": self.settings.model, "usage": usage})

    async def give_kv(self, request: web.Request) -> web.Response:
        """POST /kv/fetch: another worker fetches KV that was kept for it; 404 where there is none (any more)."""
        try:
            tokens = self.transfer.give(msgspec.json.decode(await request.read(), type=Fetch).remote_request_id)
        except msgspec.MsgspecError as problem:
            return _refusal(RequestError(400, "BadRequestError", str(problem)))
        if tokens is None:
            return _refusal(RequestError(404, "NotFoundError", "no KV is kept for this request"))
        return _json(Fetched(tokens))

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize, of a prompt or of messages: the ids are made up, their number is as for completions."""
        try:
            body = bodies.decode(await request.read(), self.settings)
            count = bodies.prompt_tokens(body, self.settings, chat=body.messages is not None)
        except RequestError as problem:
            return _refusal(problem)
        limit = self.settings.model_length
        return _json({"count": count, "max_model_len": limit, "tokens": list(range(count)), "token_strs": None})

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models."""
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "bidroute",
            "root": self.settings.model,
            "max_model_len": self.settings.model_length,
        }
        return _json({"object": "list", "data": [model]})

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health: 200 unless a fault says otherwise."""
        return web.Response(status=self.faults.health_status)

    async def server_info(self, _request: web.Request) -> web.Response:
        """GET /server_info, as vLLM's in JSON form."""
        settings = self.settings
        scheduler = {
            "max_num_seqs": settings.batch_slots,
            "max_num_batched_tokens": settings.max_batched_tokens,
            "max_model_len": settings.model_length,
        }
        cache = {"block_size": settings.block_size, "num_gpu_blocks": settings.kv_blocks + 1}
        model = {"model": settings.model, "max_model_len": settings.model_length}
        return _json({"vllm_config": {"scheduler_config": scheduler, "cache_config": cache, "model_config": model}})

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics."""
        page = metrics_page(self.settings, self.runner, self.ended, self.transfer.counters)
        return web.Response(text=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def set_fault(self, request: web.Request) -> web.Response:
        """POST /fault."""
        try:
            self.faults.set(msgspec.json.decode(await request.read(), type=Fault))
        except (msgspec.MsgspecError, ValueError) as problem:
            return _refusal(RequestError(400, "BadRequestError", str(problem)))
        return _json({"fault": self.faults.active.kind})


class Tokens:
    """Lets a handler wait for its request's next token, of any of its sequences; so many were `seen`."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self._sequences = sequences
        self.seen = 0
        self._waiter: asyncio.Future[None] | None = None
        for sequence in sequences:
            sequence.wake = self._wake

    async def more(self) -> None:
        """Return once there are tokens that the call before did not see."""
        if self._there() == self.seen:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self.seen = self._there()

    def _there(self) -> int:
        return sum(sequence.generated for sequence in self._sequences)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _why(sequence: Sequence, generation: Generation) -> str:
    if not sequence.done:
        return "abort"
    return "stop" if generation.natural_end else "length"


def _cut(request: web.Request) -> web.Response:
    """Close the connection in the client's face; the response is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _refusal(problem: RequestError) -> web.Response:
    return _json(replies.error(problem.status, problem.kind, str(problem)), problem.status)


def _json(data: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(data), status=status, content_type="application/json")
