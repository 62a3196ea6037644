"""Start the router, and let it end: the one place where dispatcher and HTTP meet."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Mapping

from aiohttp import web

from bidroute.router.dispatching import Dispatching
from bidroute.router.http_settings import HttpSettings
from bidroute.router.server import Gateway, GatewayServer, Handler
from bidroute.router.tracing import NO_TRACING, Tracing

_LOG = logging.getLogger("bidroute.serve")


class Listener:
    """A gateway on its port. `async with` starts it, and stops it at once; `drain` lets it end gently first."""

    def __init__(
        self,
        dispatcher: Dispatching,
        settings: HttpSettings,
        routes: Mapping[tuple[str, str], Handler] | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._more_routes = routes
        self._tracing = tracing
        self.gateway: Gateway | None = None
        self.port = settings.port

    async def __aenter__(self) -> Listener:
        """Listen; `port` is then the port it is on."""
        self.gateway = Gateway(self._dispatcher, self._settings, self._more_routes, self._tracing)
        self.gateway.start()
        self._runner = web.ServerRunner(GatewayServer(self.gateway, self._settings), shutdown_timeout=1.0)
        await self._runner.setup()
        settings = self._settings
        self._site = web.TCPSite(
            self._runner, settings.host, settings.port, ssl_context=_client_tls(settings), backlog=4096
        )
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def drain(self) -> bool:
        """Accept no more connections and requests; wait for those that run. Whether all ended in time."""
        assert self.gateway is not None
        await self._site.stop()
        return await self.gateway.drained(self._settings.drain_s)

    async def __aexit__(self, *_: object) -> None:
        """Close every connection; requests that still run are cancelled."""
        await self._runner.cleanup()
        if self.gateway is not None:
            await self.gateway.stop()


def _client_tls(settings: HttpSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    return context


async def until_signalled(listener: Listener) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the draining."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    hurry = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    await stop.wait()
    _LOG.info("draining")
    draining = asyncio.ensure_future(listener.drain())
    hurrying = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
    complete = draining.done() and draining.result()
    for task in (draining, hurrying):
        task.cancel()
    _LOG.info("stopped", extra={"fields": {"all_requests_ended": complete}})
