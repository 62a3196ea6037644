"""Starting and stopping a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import uvloop
from aiohttp import web

from bidroute.errors import ConfigError
from bidroute.worker.app import WorkerApp
from bidroute.worker.settings import WorkerSettings

SHUTDOWN_S = 1.0


@contextlib.asynccontextmanager
async def serving(
    settings: WorkerSettings, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[WorkerApp, int]]:
    """Serve until the block ends; yields the WorkerApp and the port (a free one for 0). Raises OSError."""
    worker = WorkerApp(settings)
    runner = web.AppRunner(worker.build(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield worker, runner.addresses[0][1]
    finally:
        await runner.cleanup()


def serve(settings: WorkerSettings, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, on uvloop. Raises ConfigError where it cannot listen."""
    try:
        uvloop.run(_serve(settings, host, port))
    except OSError as problem:
        raise ConfigError(f"cannot listen on {host}:{port}: {problem.strerror or problem}; choose another") from None


async def _serve(settings: WorkerSettings, host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serving(settings, host, port) as (_worker, taken):
        print(f"worker {settings.model} listens on http://{host}:{taken}", flush=True)
        await stop.wait()
