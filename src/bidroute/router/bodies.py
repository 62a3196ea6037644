"""Receive a client's body whole, within limits."""

from __future__ import annotations

import asyncio

from aiohttp import web

from bidroute.router.http_settings import HttpSettings


class HttpError(Exception):
    """The request cannot be taken as HTTP: the status, a line that says why, and whether the connection must close."""

    def __init__(self, status: int, code: str, message: str, closes: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.closes = closes


def check_framing(request: web.BaseRequest) -> None:
    """Refuse a request whose length could be read in two ways, or that no worker could read. Raises HttpError.

    The parser refuses most of these itself; what it lets through would end here.
    """
    headers = request.headers
    if "Transfer-Encoding" in headers:
        codings = headers.getall("Transfer-Encoding")
        if "Content-Length" in headers or len(codings) > 1 or codings[0].strip().lower() != "chunked":
            raise HttpError(400, "ambiguous_length", "the length of the body is ambiguous", closes=True)
    if headers.get("Content-Encoding", "identity").lower() != "identity":
        raise HttpError(415, "content_encoding", "bodies must not be compressed; send the JSON as it is", closes=True)
    if headers.get("Expect", "100-continue").lower() != "100-continue":
        raise HttpError(417, "expectation_failed", "the only expectation served is 100-continue", closes=True)


async def whole_body(request: web.BaseRequest, settings: HttpSettings) -> bytes:
    """The body as it came. Raises HttpError where it is too large, too slow or malformed."""
    limit = settings.max_body_bytes
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    if "Expect" in request.headers:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    content = request.content
    if content.is_eof() and not content.exception():
        body = content.read_nowait()
        if len(body) > limit:
            raise _too_large(limit)
        return body
    pieces, size = [], 0
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            while piece := await content.readany():
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
    except TimeoutError:
        seconds = settings.body_timeout_s
        raise HttpError(408, "body_too_slow", f"the body did not arrive within {seconds:g} s", closes=True) from None
    except (web.RequestPayloadError, ValueError):
        raise HttpError(400, "malformed_body", "the body's chunked encoding is malformed", closes=True) from None
    return b"".join(pieces)


def _too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body is larger than the limit of {limit} bytes", closes=True)
