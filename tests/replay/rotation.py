"""A router for tests: `rotation.py --port N --config FILE` sends requests to its workers in turn, and knows no more."""

from __future__ import annotations

import sys
from itertools import cycle
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web


def main(port: int, config: Path) -> None:
    workers = cycle([worker["url"] for worker in yaml.safe_load(config.read_text())["workers"]])

    async def forward(request: web.Request) -> web.StreamResponse:
        url = next(workers) + request.path
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=await request.read()) as answer,
        ):
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main(int(sys.argv[2]), Path(sys.argv[4]))
