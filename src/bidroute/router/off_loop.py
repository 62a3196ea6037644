"""Price and length updates: in a thread on a frozen copy of the state, so that they hold up no stream."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakKeyDictionary

from bidroute.policies import Controller
from bidroute.router.metrics import RouterMetrics

log = logging.getLogger("bidroute.router")

IDLE_FACTOR = 8.0  # so much rarer while nobody waits: prices must be seen to fall, and lengths go on being learned


class Updates:
    """Keeps prices and lengths up to date, one update at a time, `every_s` seconds apart or more.

    `off_loop`: in a thread; else at once, in the call. `running` is the last update that went into the thread.
    """

    def __init__(
        self, metrics: RouterMetrics, every_s: float, *, off_loop: bool, threads: ThreadPoolExecutor | None = None
    ) -> None:
        self.running: asyncio.Future[None] | None = None
        self._metrics = metrics
        self._every_s = every_s
        self._off_loop = off_loop
        self._updated_s = -math.inf
        self._others: WeakKeyDictionary[Controller, Updates] = WeakKeyDictionary()
        self._threads = threads or ThreadPoolExecutor(1, thread_name_prefix="prices")

    def beside(self, controller: Controller) -> Updates:
        """Those of another controller, in the same thread: they share a length model."""
        if controller not in self._others:
            self._others[controller] = Updates(
                self._metrics, self._every_s, off_loop=self._off_loop, threads=self._threads
            )
        return self._others[controller]

    def due(self, now_s: float, *, seldom: bool = False) -> bool:
        """Whether no update runs, and it is time for another one: `seldom`, or as often as prices can matter."""
        every_s = IDLE_FACTOR * self._every_s if seldom else self._every_s
        return now_s - self._updated_s >= every_s and (self.running is None or self.running.done())

    def refresh(self, controller: Controller, now_s: float, *, seldom: bool) -> None:
        """Begin an update where one is due. Called on the event loop."""
        if not self.due(now_s, seldom=seldom):
            return
        self._updated_s = now_s
        if not self._off_loop:
            controller.update(now_s)
            return
        frozen = controller.state.frozen()
        loop = asyncio.get_running_loop()
        self.running = loop.run_in_executor(self._threads, controller.update, now_s, frozen)
        self.running.add_done_callback(partial(self._updated, time.perf_counter()))

    def stop(self) -> None:
        """Wait for the update that runs; there will be no other."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _updated(self, began_s: float, update: asyncio.Future[None]) -> None:
        if update.cancelled():
            return
        if update.exception() is not None:
            log.error("price update failed", exc_info=update.exception())
        self._metrics.prices_updated(time.perf_counter() - began_s)
