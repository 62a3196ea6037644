"""Wire dispatcher and HTTP together and run them on uvloop until a signal says stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from bidroute.errors import ConfigError
from bidroute.router.dispatcher import Dispatcher
from bidroute.router.request_log import write_logs
from bidroute.router.serve import Listener, until_signalled
from bidroute.router.settings import RouterSettings

_LOG = logging.getLogger("bidroute.serve")
_LEVELS = ("debug", "info", "warning", "error")


def run(settings: RouterSettings, log_level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError where the settings or the port cannot be used."""
    if log_level not in _LEVELS:
        raise ConfigError(f"unknown log level {log_level!r}; choose from {', '.join(_LEVELS)}")
    write_logs(log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings))


async def _serve(settings: RouterSettings) -> None:
    dispatcher = Dispatcher(settings)
    dispatcher.start()
    try:
        async with Listener(dispatcher, settings.http) as listener:
            fields = {"host": settings.http.host, "port": listener.port, "workers": len(settings.workers)}
            _LOG.info("serving", extra={"fields": fields})
            await until_signalled(listener)
    finally:
        dispatcher.stop()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The maker of uvloop's loops; of asyncio's own where there is no uvloop (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
