"""Start, SIGTERM, and settings that cannot be served."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp
import pytest

from bidroute.errors import ConfigError
from bidroute.router.http_settings import HttpSettings
from bidroute.router.serve import until_signalled
from tests.router.fakes import DONE, FakeWorker, chunk, router, streams

STREAM = {"model": "tiny", "prompt": "x", "stream": True}


@pytest.mark.parametrize("times", [1, 2])
async def test_sigterm_drains_and_a_second_one_hurries(times: int) -> None:
    async with (
        FakeWorker(streams(chunk("a"), 0.4, DONE)).running() as worker,
        router(worker) as routed,
        aiohttp.ClientSession() as session,
    ):
        answer = await session.post(routed.url + "/v1/completions", json=STREAM)
        serving = asyncio.ensure_future(until_signalled(routed.listener))
        await asyncio.sleep(0.05)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
        if times == 1:
            assert DONE in await answer.read()
        await asyncio.wait_for(serving, 1.0)
        assert bool(routed.dispatcher.open) == (times == 2)
        answer.close()


WRONG: list[dict[str, Any]] = [{"port": 70000}, {"host": "0.0.0.0"}, {"api_keys": ("",)}, {"trusted_hints": ("x-me",)}]
WRONG += [{"stall_timeout_s": 0.0}, {"drain_s": -1.0}, {"tls_key": "k"}, {"worker_ca": "/nowhere"}, {"max_attempts": 0}]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_settings_are_one_line(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as problem:
        HttpSettings(**wrong)
    assert "\n" not in str(problem.value)


def test_beyond_loopback_with_keys_or_by_decision() -> None:
    assert HttpSettings(host="0.0.0.0", api_keys=("k",)).host == "0.0.0.0"
    assert HttpSettings(host="0.0.0.0", allow_open=True).host == "0.0.0.0"
