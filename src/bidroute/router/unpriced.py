"""What needs no decision: embeddings and the like go to the least busy worker, the list of models is everyone's."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from bidroute.router.answer import BadAnswerError
from bidroute.router.attempts import AttemptError, broken, stalled
from bidroute.router.client_answer import ClientAnswer
from bidroute.router.dispatching import Dispatching
from bidroute.router.headers import own_headers, request_lines
from bidroute.router.http_settings import HttpSettings
from bidroute.router.request_body import model_of
from bidroute.router.upstream import Call, Upstream
from bidroute.router.workers import Worker

_MODELS = "/v1/models"
_MODELS_TIMEOUT_S = 5.0
_MODELS_KEPT_S = 2.0  # a list this young is given again


class _ModelList(msgspec.Struct):
    data: list[dict[str, Any]]


class Unpriced:
    """Passes requests on without a ticket."""

    def __init__(self, dispatcher: Dispatching, upstream: Upstream, settings: HttpSettings) -> None:
        self._dispatcher = dispatcher
        self._upstream = upstream
        self._settings = settings
        self._models: tuple[float, list[dict[str, Any]]] | None = None

    async def passed(self, request: web.BaseRequest, request_id: str, path: str, body: bytes) -> web.StreamResponse:
        """Send it to the least busy worker that serves the model, and give back what it says."""
        worker = self._dispatcher.least_busy(model_of(body))
        lines = request_lines(request._message.raw_headers, worker.headers, request_id, not self._settings.api_keys)
        patience_s = self._settings.answer_timeout_s
        call = Call()
        try:
            async with asyncio.timeout(patience_s):
                await self._upstream.run(call, "POST", worker, path, lines, body)
        except TimeoutError:
            return _failed(stalled(patience_s), request_id, worker)
        except (OSError, EOFError, BadAnswerError) as problem:
            return _failed(broken(problem), request_id, worker)
        response = ClientAnswer(request, call.answer, request_id, worker.name)
        response.write_whole(call.body)
        return response

    async def models(self) -> list[dict[str, Any]]:
        """The models of all workers, each once; workers that do not answer in time are left out."""
        now_s = asyncio.get_running_loop().time()
        if self._models is None or now_s - self._models[0] > _MODELS_KEPT_S:
            lists = await asyncio.gather(*(self._models_of(worker) for worker in self._dispatcher.workers.values()))
            merged = {str(model.get("id")): model for models in reversed(lists) for model in models}
            self._models = (now_s, list(merged.values()))
        return self._models[1]

    async def _models_of(self, worker: Worker) -> list[dict[str, Any]]:
        call, lines = Call(), "".join(f"{name}: {value}\r\n" for name, value in worker.headers.items()).encode()
        try:
            async with asyncio.timeout(_MODELS_TIMEOUT_S):
                await self._upstream.run(call, "GET", worker, _MODELS, lines, b"")
            return msgspec.json.decode(call.body, type=_ModelList).data if call.answer.status == 200 else []
        except (OSError, EOFError, BadAnswerError, msgspec.MsgspecError):
            return []


def _failed(problem: AttemptError, request_id: str, worker: Worker) -> web.StreamResponse:
    return web.Response(body=problem.text(), status=problem.status, headers=own_headers(request_id, worker.name))
