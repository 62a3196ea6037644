"""The replay itself: open loop, every request at its time whatever became of those before."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import uvloop

from bidroute.errors import ConfigError
from bidroute.replay.prompts import Prompts
from bidroute.replay.scraping import Scraper, WorkerCounts
from bidroute.replay.sending import Ending, Sent, request_body, send
from bidroute.replay.settings import ReplaySettings, workload_of
from bidroute.traces import Workload

SETTLE_S = 0.2  # between the first sight of the workers' counters and the first request
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One seed: its workload, the model asked, what became of every request, and what the workers say."""

    seed: int
    workload: Workload
    speedup: float
    model: str
    sent: list[Sent]
    workers: list[WorkerCounts]


def replay_all(settings: ReplaySettings, seeds: int, on_progress: Progress) -> list[Replayed]:
    """Replay seeds 0 … `seeds` − 1 one after the other. Raises ConfigError where nobody answers at the target."""
    if seeds < 1:
        raise ConfigError(f"seeds: {seeds}; expected a whole number, 1 or more")
    workloads = [workload_of(settings, seed) for seed in range(seeds)]
    return [
        uvloop.run(replay(settings, workload, speedup, seed, on_progress))
        for seed, (workload, speedup) in enumerate(workloads)
    ]


async def replay(
    settings: ReplaySettings, workload: Workload, speedup: float, seed: int, on_progress: Progress
) -> Replayed:
    """Send the whole workload and wait until all of it has ended."""
    headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.timeout_s)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session,
        aiohttp.ClientSession() as scraping,  # the workers are not shown the endpoint's key
    ):
        scraper = Scraper(scraping, settings.scrape)
        try:
            model = settings.model or await _first_model(session, settings.base)
            await scraper.begin()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError) as problem:
            raise ConfigError(
                f"cannot begin against {settings.target}: {problem or type(problem).__name__}; is it an OpenAI "
                "endpoint that runs, and are all --scrape addresses workers?"
            ) from None
        sent = await _send_all(session, settings, workload, model, seed, on_progress)
        return Replayed(seed, workload, speedup, model, sent, await scraper.end())


async def _send_all(
    session: aiohttp.ClientSession,
    settings: ReplaySettings,
    workload: Workload,
    model: str,
    seed: int,
    on_progress: Progress,
) -> list[Sent]:
    url = f"{settings.base}/v1/{'chat/completions' if settings.chat else 'completions'}"
    prompts = Prompts(settings.bytes_per_token, seed)
    start_s = time.monotonic() + SETTLE_S  # the loop's own clock is coarse
    rows = zip(
        workload.arrival_s.tolist(), workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True
    )
    all_sent: list[Sent] = []
    done = 0
    on_progress(0, len(workload), f"seed {seed}")

    async def one(body: bytes, sent: Sent) -> None:
        nonlocal done
        try:
            async with asyncio.timeout(start_s + sent.scheduled_s + settings.timeout_s - time.monotonic()):
                await send(session, url, body, sent, start_s)
        except TimeoutError:
            sent.ending, sent.reason = Ending.TIMEOUT, f"not ended within {settings.timeout_s:g} s"
        done += 1
        on_progress(done, len(workload), f"seed {seed}")

    async with asyncio.TaskGroup() as group:
        for arrival_s, prompt_tokens, output_tokens in rows:
            body = request_body(model, prompts.text(prompt_tokens), max(1, output_tokens), chat=settings.chat)
            sent = Sent(arrival_s, max(1, output_tokens))
            all_sent.append(sent)
            await asyncio.sleep(max(0.0, start_s + arrival_s - time.monotonic()))
            group.create_task(one(body, sent))
    return all_sent


async def _first_model(session: aiohttp.ClientSession, base: str) -> str:
    async with session.get(
        f"{base}/v1/models", timeout=aiohttp.ClientTimeout(total=10.0), raise_for_status=True
    ) as answer:
        return str(json.loads(await answer.read())["data"][0]["id"])
