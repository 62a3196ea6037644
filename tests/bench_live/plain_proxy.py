"""A proxy as anybody would write it with aiohttp on uvloop: turn by turn to the workers, and nothing else."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import AsyncIterator, Mapping

import aiohttp
import uvloop
from aiohttp import web

_HOP_BY_HOP = ("connection", "content-length", "host", "keep-alive", "transfer-encoding")


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def build_app(workers: list[str]) -> web.Application:
    turns = itertools.cycle(workers)

    async def forward(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        session: aiohttp.ClientSession = request.app["session"]
        url = next(turns) + request.path_qs
        async with session.request(request.method, url, data=body, headers=_end_to_end(request.headers)) as answer:
            if not answer.content_type.startswith("text/event-stream"):
                return web.Response(body=await answer.read(), status=answer.status, headers=_end_to_end(answer.headers))
            response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    async def session(app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as opened:
            app["session"] = opened
            yield

    app = web.Application()
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", forward)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker", action="append", required=True)
    given = parser.parse_args()
    app, loop = build_app(given.worker), uvloop.new_event_loop()
    web.run_app(app, host="127.0.0.1", port=given.port, access_log=None, print=None, loop=loop)


if __name__ == "__main__":
    main()
