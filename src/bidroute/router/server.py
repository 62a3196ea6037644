"""The router's HTTP server: routes, keys, limits, and every problem as an OpenAI-style error."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from bidroute.router.attempts import ClientGoneError
from bidroute.router.bodies import HttpError, check_framing, whole_body
from bidroute.router.dispatching import Dispatching
from bidroute.router.headers import REQUEST_ID, own_headers, usable_request_id
from bidroute.router.http_settings import HttpSettings
from bidroute.router.keys import BearerKeys
from bidroute.router.openai_errors import error_body
from bidroute.router.proxy import Proxy
from bidroute.router.request_body import BadBodyError, BodyFacts, chat_facts, completion_facts
from bidroute.router.tickets import RefusedError
from bidroute.router.tracing import NO_TRACING, Tracing
from bidroute.router.unpriced import Unpriced
from bidroute.router.upstream import Upstream
from bidroute.router.watchdog import Watchdog

Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]

PRICED: dict[str, Callable[[bytes], BodyFacts]] = {
    "/v1/chat/completions": chat_facts,
    "/v1/completions": completion_facts,
}
UNPRICED = ("/v1/embeddings", "/v1/rerank", "/v1/score", "/rerank", "/score", "/pooling", "/tokenize", "/detokenize")
_OPEN = ("/health", "/ready")  # need no key
_IDLE_S = 75.0  # how long a connection may idle, or take to send its headers
_LOG = logging.getLogger("bidroute.http")


class Gateway:
    """Answers every request of the port; `routes` are more of them, such as /metrics: (method, path) → handler."""

    def __init__(
        self,
        dispatcher: Dispatching,
        settings: HttpSettings,
        routes: Mapping[tuple[str, str], Handler] | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """Must be made on the running loop."""
        self._dispatcher = dispatcher
        self._settings = settings
        self._keys = BearerKeys(settings.api_keys)
        self._upstream = Upstream(settings)
        shortest_s = min(settings.stall_timeout_s, settings.first_byte_timeout_s, settings.answer_timeout_s)
        self._watchdog = Watchdog(shortest_s)
        self._proxy = Proxy(dispatcher, self._upstream, self._watchdog, settings, tracing)
        self._unpriced = Unpriced(dispatcher, self._upstream, settings)
        self._routes = self._own_routes() | dict(routes or {})
        self._paths = {path for _, path in self._routes}
        self._id_prefix, self._ids = secrets.token_hex(8), itertools.count(1)
        self.running = 0  # requests being served
        self.draining = False

    def _own_routes(self) -> dict[tuple[str, str], Handler]:
        routes: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/v1/models"): self._models,
        }
        routes |= {("POST", path): self._priced for path in PRICED}
        return routes | {("POST", path): self._passed for path in UNPRICED}

    def start(self) -> None:
        """Begin to watch over exchanges."""
        self._watchdog.start()

    async def stop(self) -> None:
        """Close the connections to the workers."""
        await self._watchdog.stop()
        await self._upstream.close()

    async def drained(self, timeout_s: float) -> bool:
        """Take no new requests, and wait for those that run; whether they all ended in time."""
        self.draining = True
        end_s = asyncio.get_running_loop().time() + timeout_s
        while self.running and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.05)
        return self.running == 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        given = request.headers.get(REQUEST_ID)
        request_id = given if usable_request_id(given) else f"{self._id_prefix}{next(self._ids):08x}"
        assert request_id is not None
        self.running += 1
        try:
            check_framing(request)
            return await self._handler(request)(request, request_id)
        except RefusedError as refusal:
            return self._error(request_id, refusal.status, refusal.reason, refusal.code, refusal.retry_after_s)
        except BadBodyError as problem:
            return self._error(request_id, 400, problem.message, "bad_request", param=problem.param)
        except ClientGoneError:
            return web.Response(status=499)
        except HttpError as problem:
            response = self._error(request_id, problem.status, problem.message, problem.code)
            if problem.closes:
                response.force_close()
            return response
        finally:
            self.running -= 1

    def _handler(self, request: web.BaseRequest) -> Handler:
        path = request.raw_path.partition("?")[0]
        if self._keys and path not in _OPEN and not self._keys.know(request.headers.get("Authorization")):
            raise HttpError(401, "invalid_api_key", "no valid API key; send the header Authorization: Bearer KEY")
        handler = self._routes.get((request.method, path))
        if handler is not None:
            return handler
        if path in self._paths:
            raise HttpError(405, "method_not_allowed", "this path does not take this method")
        raise HttpError(404, "unknown_path", "no such path; see /v1/chat/completions, /v1/completions, /v1/models")

    async def _priced(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        self._check_not_draining()
        body = await whole_body(request, self._settings)
        path = request.raw_path
        return await self._proxy.serve(request, request_id, path, body, PRICED[path.partition("?")[0]])

    async def _passed(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        self._check_not_draining()
        body = await whole_body(request, self._settings)
        return await self._unpriced.passed(request, request_id, request.raw_path, body)

    async def _models(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        models = await self._unpriced.models()
        return _json({"object": "list", "data": models}, request_id)

    async def _health(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        return _json({"status": "ok"}, request_id)

    async def _ready(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        self._check_not_draining()
        if not self._dispatcher.workers:
            raise RefusedError(503, "no_workers", "no worker is in service", 1.0)
        return _json({"status": "ready"}, request_id)

    def _check_not_draining(self) -> None:
        if self.draining:
            raise HttpError(503, "draining", "this router is shutting down; try another", closes=True)

    def _error(
        self,
        request_id: str,
        status: int,
        message: str,
        code: str,
        retry_after_s: float | None = None,
        param: str | None = None,
    ) -> web.Response:
        headers = own_headers(request_id)
        if retry_after_s is not None and math.isfinite(retry_after_s):
            headers["Retry-After"] = str(max(math.ceil(retry_after_s), 1))
        elif status in (429, 503):
            headers["Retry-After"] = "1"
        return web.Response(body=error_body(status, message, code, param), status=status, headers=headers)


class Connection(RequestHandler):
    """A client's connection; what is no HTTP is answered like all other errors, and nothing of it is logged."""

    __slots__ = ("on_pause",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_pause: Callable[[bool], None] | None = None

    def pause_writing(self) -> None:
        """The client reads more slowly than its worker writes."""
        super().pause_writing()
        if self.on_pause is not None:
            self.on_pause(True)

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        if self.on_pause is not None:
            self.on_pause(False)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that could not be parsed, or that met a mistake of the router's own."""
        if status >= 500:
            _LOG.error("request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        status = 431 if type(exc).__name__ == "LineTooLong" else status
        said = "the router failed on this request" if status >= 500 else "this is not a well-formed HTTP/1.1 request"
        response = web.Response(body=error_body(status, said), status=status, content_type="application/json")
        response.force_close()
        return response


class GatewayServer(web.Server):
    """Makes the connections. A client that leaves cancels the handler of its request."""

    def __init__(self, gateway: Gateway, settings: HttpSettings) -> None:
        super().__init__(gateway, handler_cancellation=True)
        self._limits: dict[str, Any] = {
            "max_line_size": settings.max_header_bytes,
            "max_field_size": settings.max_header_bytes,
            "max_headers": settings.max_headers,
            "keepalive_timeout": _IDLE_S,
            "lingering_time": 1.0,
            "auto_decompress": False,
            "access_log": None,
            "logger": _LOG,
        }

    def __call__(self) -> RequestHandler:
        """One more connection."""
        return Connection(self, loop=self._loop, **self._limits)


def _json(value: Any, request_id: str) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), headers=own_headers(request_id))
