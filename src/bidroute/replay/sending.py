"""One request of a replay: sent at its time, read to its end."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import aiohttp

from bidroute.replay.streams import AnswerStream


class Ending(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    REFUSED = "refused"  # answered with a status of 400 or more
    BROKEN = "broken"  # no connection, or a stream that broke off or carried an error
    TIMEOUT = "timeout"


@dataclass(slots=True)
class Sent:
    """What became of one request; times in seconds since the replay's start, NaN where it never happened.

    `prompt_tokens` and `output_tokens` are the server's own count; where it gives none, the events that carried text.
    """

    scheduled_s: float
    wanted_tokens: int
    sent_s: float = math.nan
    first_s: float = math.nan
    end_s: float = math.nan
    prompt_tokens: int | None = None
    output_tokens: int = 0
    ending: Ending = Ending.BROKEN
    reason: str = ""


async def send(session: aiohttp.ClientSession, url: str, body: bytes, sent: Sent, start_s: float) -> None:
    """POST `body` and follow the stream; `start_s` is when the replay began, on the monotonic clock."""
    answer = AnswerStream()
    sent.sent_s = time.monotonic() - start_s
    try:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            if response.status >= 400:
                sent.ending = Ending.REFUSED
                sent.reason = f"HTTP {response.status}"
                await response.read()
                return
            async for data in response.content.iter_any():
                answer.feed(data)
                sent.end_s = time.monotonic() - start_s
                if answer.started and math.isnan(sent.first_s):
                    sent.first_s = sent.end_s
    except (aiohttp.ClientError, OSError) as problem:
        sent.reason = type(problem).__name__
    _conclude(sent, answer)


def _conclude(sent: Sent, answer: AnswerStream) -> None:
    usage = answer.usage or {}
    sent.prompt_tokens = usage.get("prompt_tokens")
    sent.output_tokens = usage.get("completion_tokens") or answer.chunks
    if answer.error is not None:
        sent.reason = "error in the stream"
    elif answer.done and answer.started:
        sent.ending = Ending.FINISHED
    else:
        sent.reason = sent.reason or "the stream broke off"


def request_body(model: str, prompt: str, max_tokens: int, *, chat: bool) -> bytes:
    """A streaming request that makes exactly `max_tokens` tokens."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return json.dumps(body).encode()
