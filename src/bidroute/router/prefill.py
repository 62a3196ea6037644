"""The first half of a request that is prefilled on one worker and decoded on another."""

from __future__ import annotations

import asyncio

from bidroute.router.answer import BadAnswerError
from bidroute.router.attempts import broken, keeps_no_kv, refused, stalled
from bidroute.router.exchange import Exchange
from bidroute.router.headers import request_lines
from bidroute.router.http_settings import HttpSettings
from bidroute.router.prefill_bodies import prefill_body, read_prefilled
from bidroute.router.upstream import Call, Upstream
from bidroute.router.watchdog import Watchdog
from bidroute.router.workers import Worker


class Prefiller:
    """Has prompts processed by prefill workers."""

    def __init__(self, upstream: Upstream, watchdog: Watchdog, settings: HttpSettings) -> None:
        self._upstream = upstream
        self._watchdog = watchdog
        self._settings = settings
        self._now = asyncio.get_running_loop().time

    async def prefill(self, exchange: Exchange, worker: Worker) -> None:
        """Let this worker process the prompt, and its request go on to the decode fleet's queue.

        Raises AttemptError where the worker did not, and RefusedError where no decode worker could ever run it.
        """
        settings = self._settings
        raw_headers = exchange.request._message.raw_headers
        lines = request_lines(raw_headers, worker.headers, exchange.request_id, not settings.api_keys)
        patience_s = settings.first_byte_timeout_s
        call = Call()
        try:
            with self._watchdog.watch(call, self._now() + patience_s):
                await self._upstream.run(call, "POST", worker, exchange.path, lines, prefill_body(exchange.body))
        except TimeoutError:
            raise stalled(patience_s) from None
        except (OSError, EOFError, BadAnswerError) as problem:
            raise broken(problem) from None
        if not 200 <= call.answer.status < 300:
            raise refused(call.answer, call.body)
        prefilled = read_prefilled(call.body)
        if prefilled is None:
            raise keeps_no_kv()
        exchange.prefilled_s, exchange.prefill_worker = self._now(), worker.name
        exchange.ticket.prefilled(prefilled.params, prefilled.prompt_tokens)
