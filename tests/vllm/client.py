"""What the suite says to the router and to the engines, and what it reads of their answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

PATH = "/v1/completions"
PATIENCE_S = 120.0  # for what comes in a moment, unless the machine has much other work


def completion(prompt_tokens: int, output_tokens: int, **more: Any) -> dict[str, Any]:
    """A request of known lengths: the model's tokens are bytes."""
    return {"model": "tiny", "prompt": "p" * prompt_tokens, "max_tokens": output_tokens, "ignore_eos": True} | more


@dataclass
class Streamed:
    """A stream as a client saw it: its JSON events, and whether it ended with `[DONE]`."""

    status: int = 0
    worker: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def error(self) -> dict[str, Any] | None:
        return next((event["error"] for event in self.events if "error" in event), None)

    @property
    def usages(self) -> list[dict[str, Any]]:
        return [event["usage"] for event in self.events if event.get("usage")]


async def events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """The data of its events, as they come."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()


async def stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], path: str = PATH, seen: Streamed | None = None
) -> Streamed:
    """Read a stream to its end, however that is; `seen` grows as it comes."""
    seen = seen or Streamed()
    async with session.post(url + path, json=body | {"stream": True}) as answer:
        seen.status, seen.worker = answer.status, answer.headers.get("x-bidroute-worker", "")
        async for data in events_of(answer):
            if data == "[DONE]":
                seen.done = True
            else:
                seen.events.append(json.loads(data))
        return seen


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any], path: str = PATH) -> tuple[int, Any]:
    """Status and JSON of an answer that is not streamed."""
    async with session.post(url + path, json=body) as answer:
        return answer.status, await answer.json()


@asynccontextmanager
async def began(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> AsyncIterator[Any]:
    """A stream of which the first three events were read; leaving the context leaves the router."""
    async with session.post(url + PATH, json=body | {"stream": True}) as answer:
        seen = 0
        async for _ in events_of(answer):
            seen += 1
            if seen == 3:
                break
        yield answer


async def state(session: aiohttp.ClientSession, admin_url: str) -> dict[str, Any]:
    async with session.get(f"{admin_url}/admin/state") as answer:
        assert answer.status == 200
        found: dict[str, Any] = await answer.json()
        return found


async def worker_state(session: aiohttp.ClientSession, admin_url: str, name: str) -> dict[str, Any]:
    """What the router knows of a worker; of one that is not there, only its status "gone"."""
    workers = (await state(session, admin_url))["workers"]
    return next((worker for worker in workers if worker["name"] == name), {"status": "gone"})


async def engine(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """An engine's own numbers, by name without prefix and labels."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    rows = re.findall(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in rows}


async def prompt_tokens_by_source(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Where an engine had the KV of its prompts from."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    rows = re.findall(r'^vllm:prompt_tokens_by_source_total\{[^}]*source="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {source: float(tokens) for source, tokens in rows}


async def until(holds: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until it holds. Raises AssertionError."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    while not await holds():
        assert asyncio.get_running_loop().time() < end_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.1)
