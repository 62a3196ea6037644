"""Wire fleet, dispatcher, HTTP and admin together and run them on uvloop until a signal says stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from bidroute.errors import ConfigError
from bidroute.router.admin import build_admin_app
from bidroute.router.dispatcher import Dispatcher
from bidroute.router.live_fleet import LiveFleet
from bidroute.router.metrics import CONTENT_TYPE
from bidroute.router.request_log import write_logs
from bidroute.router.serve import Listener, until_signalled
from bidroute.router.settings import RouterSettings
from bidroute.router.tracing import open_tracing
from bidroute.router.warm_up import compile_kernels
from bidroute.router.watch import FleetFileWatcher, read_workers

_LOG = logging.getLogger("bidroute.serve")
SWITCH_S = 0.0005  # how long a price update may keep the event loop waiting for Python's lock
GC_THRESHOLDS = (2_000, 1, 1_000)
_LEVELS = ("debug", "info", "warning", "error")


def run(settings: RouterSettings, log_level: str = "info", fleet_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError where the settings or the port cannot be used.

    `fleet_file`: its list of workers is followed while the router runs.
    """
    if log_level not in _LEVELS:
        raise ConfigError(f"unknown log level {log_level!r}; choose from {', '.join(_LEVELS)}")
    write_logs(log_level)
    compile_kernels(settings)
    _spare_collections()
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, fleet_file))


async def _serve(settings: RouterSettings, fleet_file: Path | None) -> None:
    async with running_router(settings) as (fleet, listener):
        watching = asyncio.create_task(_watch(fleet_file, fleet)) if fleet_file is not None else None
        fields = {"host": settings.http.host, "port": listener.port, "workers": len(settings.workers)}
        _LOG.info("serving", extra={"fields": fields})
        await until_signalled(listener)
        if watching is not None:
            watching.cancel()


@asynccontextmanager
async def running_router(settings: RouterSettings) -> AsyncIterator[tuple[LiveFleet, Listener]]:
    """A router in the running loop, for as long as the context lasts."""
    tracing = open_tracing(settings.otlp_endpoint)
    dispatcher = Dispatcher(settings)
    fleet = LiveFleet(settings, dispatcher)
    dispatcher.start()
    await fleet.start()

    async def metrics_page(request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        dispatcher.metrics.observe_state(fleet.state())
        page = await dispatcher.metrics.render_in_steps()
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    try:
        async with (
            Listener(dispatcher, settings.http, {("GET", "/metrics"): metrics_page}, tracing) as listener,
            _admin(settings, fleet, dispatcher),
        ):
            yield fleet, listener
    finally:
        dispatcher.stop()
        await fleet.stop()
        await asyncio.to_thread(tracing.close)


@asynccontextmanager
async def _admin(settings: RouterSettings, fleet: LiveFleet, dispatcher: Dispatcher) -> AsyncIterator[None]:
    """Page, admin API and metrics on their own port, where one is set."""
    if settings.admin_port is None:
        yield
        return
    app = build_admin_app(fleet, dispatcher.metrics, settings.admin_token)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await _listen(web.TCPSite(runner, settings.http.host, settings.admin_port), settings.admin_port)
        yield
    finally:
        await runner.cleanup()


async def _listen(site: web.TCPSite, port: int) -> None:
    try:
        await site.start()
    except OSError as problem:
        raise ConfigError(f"admin port {port}: {problem.strerror}; choose another") from None


def _spare_collections() -> None:
    """Keep the garbage collector off what stays anyway: compiled code is half a million objects, to look through which
    takes longer than many tokens."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def _watch(path: Path, fleet: LiveFleet) -> None:
    try:
        known = read_workers(path)
    except ConfigError:  # the watcher's first look reports it; a good list that comes later is all new
        known = {}
    await FleetFileWatcher(path, fleet, known).run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The maker of uvloop's loops; of asyncio's own where there is no uvloop (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
