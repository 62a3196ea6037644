"""What a worker can hold, learned from the worker itself: batch slots, KV tokens, model length, model names.

Engines tell most of it on pages that they serve anyway. What they do not tell stays None; batch slots, which vLLM
keeps to itself outside its developer mode, are then learned from watching it (`SlotEstimate`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from bidroute.errors import BidrouteError
from bidroute.router.readings import Reading, parse_reading
from bidroute.router.workers import Worker

# What prompts are made of, more or less: prose, names and numbers, code, JSON.
SAMPLE_TEXT = """You are a careful assistant. Answer in plain English, and say so when you are not certain.

The ferry from Rostock was 40 minutes late on Tuesday 14 March, so Dr. Okonkwo missed the first of her three meetings.
Please summarise the correspondence below in two sentences; then list every date, price (EUR 1,249.50) and address.

def moving_average(values, window=5):
    totals = [0.0]
    for value in values:
        totals.append(totals[-1] + value)
    return [(totals[i + window] - totals[i]) / window for i in range(len(values) - window + 1)]

{"order_id": "A-20931", "items": [{"sku": "XR7", "quantity": 3}], "note": "livraison à l'étage, s'il vous plaît"}
"""


class UnreachableError(BidrouteError):
    """Neither the metrics nor the models of a worker could be read."""


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """`timeout_s` for each request, `largest_bytes` of one answer.

    vLLM's `/server_info` has a limit of its own: it looks over the whole machine first, which takes many seconds.
    """

    timeout_s: float = 5.0
    server_info_timeout_s: float = 30.0
    largest_bytes: int = 8_000_000


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a worker can hold; None where it does not say. `kind` is "vllm", "sglang" or "" (unknown).

    `tokens_per_byte` is what its tokenizer made of a sample text.
    """

    kind: str
    batch_slots: int | None
    kv_tokens: int | None
    block_size: int | None
    max_model_len: int | None
    models: frozenset[str] | None
    tokens_per_byte: float | None = None


async def discover(
    session: aiohttp.ClientSession, worker: Worker, settings: DiscoverySettings | None = None
) -> Capacity:
    """Ask a worker what it can hold. Raises UnreachableError when it answers neither /metrics nor /v1/models."""
    ask = _Asker(session, worker, settings or DiscoverySettings())
    page, listing = await asyncio.gather(ask.text("/metrics"), ask.json("/v1/models"))
    if page is None and listing is None:
        reasons = "; ".join(sorted(ask.problems))
        raise UnreachableError(f"worker {worker.name}: no answer from {worker.url} ({reasons}); is it up?")
    reading = parse_reading(page or "")
    models, longest, owner = _models(listing)
    kind = reading.kind or owner
    slots, kv_tokens = reading.batch_slots, reading.kv_tokens
    rate = await _tokens_per_byte(ask, min(models, default="") if models else "")
    if kind == "vllm":
        told = await ask.json("/server_info?config_format=json", ask.settings.server_info_timeout_s)
        slots = _times(_vllm_slots(told), reading.engines)
    elif kind == "sglang" and (slots is None or kv_tokens is None):
        told_slots, told_tokens = await _ask_sglang(ask)
        slots, kv_tokens = slots or told_slots, kv_tokens or told_tokens
    return Capacity(kind, slots, kv_tokens, reading.block_size, longest, models, rate)


async def _tokens_per_byte(ask: _Asker, model: str) -> float | None:
    """What the worker's own tokenizer makes of a sample text; None where it has no `/tokenize` (vLLM and SGLang do)."""
    told = await ask.json("/tokenize", body={"model": model, "prompt": SAMPLE_TEXT})
    count = _positive(told.get("count")) if isinstance(told, dict) else None
    return None if count is None else count / len(SAMPLE_TEXT.encode())


class SlotEstimate:
    """Batch slots of an engine that does not tell them, from readings of it.

    An engine that lets requests wait although its KV has room is out of batch slots, so the number it runs is its
    slots. It can also wait for prompt tokens of one step, with fewer running; but then the number varies, so a number
    counts when it was seen twice, and the largest such number is believed. Until one was seen `default_slots` are
    believed. Because an estimate that is too low would never be put to the test, an engine that ran full for a while
    with nothing waiting is believed to have a little more.
    """

    def __init__(self, default_slots: int = 256) -> None:
        self.slots = default_slots
        self.learned = False
        self._seen: Counter[int] = Counter()
        self._full_readings = 0

    def observe(self, reading: Reading) -> int:
        """Take in one reading; returns the slots believed now."""
        running = reading.running
        if not running or reading.sleeping:
            return self.slots
        if _out_of_slots(reading):
            self._full_readings = 0
            self._seen[running] += 1
            confirmed = max((value for value, times in self._seen.items() if times > 1), default=0)
            if confirmed:
                self.slots, self.learned = confirmed, True
        else:
            self._grow(running, reading.waiting or 0)
        self.slots = max(self.slots, running)
        return self.slots

    def _grow(self, running: int, waiting: int) -> None:
        self._full_readings = self._full_readings + 1 if running >= self.slots and not waiting else 0
        if self._full_readings >= _FULL_READINGS:
            self._full_readings = 0
            self.slots += 1 if self.learned else max(1, self.slots // 8)


_FULL_READINGS = 20
# A prompt needs many blocks at once: nearer to full than this, KV may be what a request waits for.
_KV_ROOM = 0.9


def _out_of_slots(reading: Reading) -> bool:
    waiting = reading.waiting if reading.waiting_for_capacity is None else reading.waiting_for_capacity
    return bool(waiting) and reading.kv_usage is not None and reading.kv_usage < _KV_ROOM


class _Asker:
    """Questions to one worker; an answer other than 200 with a readable body is None."""

    def __init__(self, session: aiohttp.ClientSession, worker: Worker, settings: DiscoverySettings) -> None:
        self.session = session
        self.worker = worker
        self.settings = settings
        self.problems: set[str] = set()

    async def text(self, path: str) -> str | None:
        body = await self._get(path)
        return None if body is None else body.decode("utf-8", "replace")

    async def json(self, path: str, timeout_s: float | None = None, body: Any = None) -> Any:
        answer = await self._get(path, timeout_s, body)
        try:
            return None if answer is None else msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.problems.add(f"{path} is not JSON")
            return None

    async def _get(self, path: str, timeout_s: float | None = None, body: Any = None) -> bytes | None:
        """The answer to a GET, or to a POST of this JSON."""
        timeout = aiohttp.ClientTimeout(total=timeout_s or self.settings.timeout_s)
        url, method = self.worker.url + path, "GET" if body is None else "POST"
        headers = self.worker.headers
        try:
            async with self.session.request(method, url, headers=headers, json=body, timeout=timeout) as answer:
                if answer.status != 200:
                    self.problems.add(f"status {answer.status} from {path}")
                    return None
                return await read_limited(answer, self.settings.largest_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            self.problems.add(one_line(problem))
            return None


async def read_limited(answer: aiohttp.ClientResponse, largest_bytes: int) -> bytes:
    """The whole body. Raises ValueError when it is larger than allowed."""
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > largest_bytes:
            raise ValueError(f"an answer of more than {largest_bytes} bytes")
    return bytes(body)


def one_line(problem: BaseException) -> str:
    """An exception as one short line; some, like a timeout, have no text of their own."""
    text = " ".join(str(problem).split())
    return text[:200] or type(problem).__name__


def _models(listing: Any) -> tuple[frozenset[str] | None, int | None, str]:
    """Names, the shortest length that all of them allow, and who says so ("vllm", "sglang" or "")."""
    rows = _dicts(listing.get("data") if isinstance(listing, dict) else None)
    names = frozenset(str(row["id"]) for row in rows if row.get("id"))
    lengths = [length for row in rows if (length := _positive(row.get("max_model_len")))]
    owners = {str(row.get("owned_by")) for row in rows} & {"vllm", "sglang"}
    return names or None, min(lengths, default=None), min(owners, default="")


def _vllm_slots(answer: Any) -> int | None:
    """`vllm_config.scheduler_config.max_num_seqs`, which only the developer mode serves."""
    for key in ("vllm_config", "scheduler_config", "max_num_seqs"):
        answer = answer.get(key) if isinstance(answer, dict) else None
    return _positive(answer)


async def _ask_sglang(ask: _Asker) -> tuple[int | None, int | None]:
    """Batch slots and KV tokens, summed over data-parallel ranks; newer servers have loads, older ones server info."""
    loads = await ask.json("/v1/loads?include=core")
    rows = _dicts(loads.get("loads") if isinstance(loads, dict) else loads)
    slots, tokens = _total(rows, "max_running_requests"), _total(rows, "max_total_num_tokens")
    if slots and tokens:
        return slots, tokens
    info = await ask.json("/get_server_info")
    if not isinstance(info, dict):
        return slots, tokens
    states = _dicts(info.get("internal_states"))
    told_slots = _total(states, "effective_max_running_requests_per_dp") or _positive(info.get("max_running_requests"))
    told_tokens = _times(_positive(info.get("max_total_num_tokens")), max(1, len(states)))
    return slots or told_slots, tokens or told_tokens


def _dicts(rows: Any) -> list[dict[str, Any]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _total(rows: list[dict[str, Any]], key: str) -> int | None:
    values = [_positive(row.get(key)) for row in rows]
    return sum(value for value in values if value) or None


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _times(value: int | None, count: int) -> int | None:
    return None if value is None else value * count
