"""The connections to the workers."""

from __future__ import annotations

import ssl

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from bidroute.router.http_settings import HttpSettings
from bidroute.router.workers import Worker

# What aiohttp would add of its own accord; workers see the client's headers only.
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_MAX_ERROR_BYTES = 256 * 1024
_KEEPALIVE_S = 4.0  # uvicorn, in front of vLLM and SGLang, closes idle connections after 5


class Upstream:
    """One pool of kept-alive connections for all workers: no limit, no cookies, no redirects, bytes as they come."""

    def __init__(self, settings: HttpSettings) -> None:
        """Must be made on the running loop."""
        tls = ssl.create_default_context(cafile=settings.worker_ca)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, ssl=tls, use_dns_cache=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            requote_redirect_url=False,
            read_bufsize=2**18,
            max_line_size=2**16,
            max_field_size=2**16,
        )
        self._urls: dict[str, URL] = {}

    async def send(
        self, method: str, worker: Worker, path: str, headers: CIMultiDict[str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send a request; returns when the answer's headers are there. Raises aiohttp.ClientError and OSError."""
        address = worker.url + path
        url = self._urls.get(address)
        if url is None:
            url = self._urls[address] = URL(address, encoded=True)
        return await self._session.request(method, url, headers=headers, data=body, allow_redirects=False)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()


async def error_answer(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer that is an error, as far as it is worth keeping."""
    body = b""
    while len(body) < _MAX_ERROR_BYTES:
        piece = await answer.content.readany()
        if not piece:
            break
        body += piece
    return body[:_MAX_ERROR_BYTES]
