"""KV that is handed from one worker to another, as vLLM does over NIXL: only the book-keeping, no bytes.

A producer keeps the blocks of a prompt until a consumer has fetched them or their lease ends. A consumer asks the
producer that the request names; where that has nothing (any more), the consumer processes the prompt itself.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import aiohttp
import msgspec

from bidroute.worker.bodies import Transfer
from bidroute.worker.engine import Engine, Sequence

FETCH_PATH = "/kv/fetch"
_FETCH_TIMEOUT_S = 2.0


class Fetch(msgspec.Struct):
    """The body of `POST /kv/fetch`."""

    remote_request_id: str


class Fetched(msgspec.Struct):
    """The answer: how many prompt tokens' KV was there."""

    tokens: int


@dataclass(slots=True)
class TransferCounters:
    """What happened since the worker was started; tokens are prompt tokens, of requests that were to be fetched."""

    fetched: int = 0
    fetched_tokens: int = 0
    recomputed: int = 0
    expired: int = 0
    fetched_too_late: int = 0


class KvTransfer:
    """Both sides of the hand-over. `kept` are the ended requests whose KV waits to be fetched, by name."""

    def __init__(self, engine: Engine, engine_id: str, lease_s: float) -> None:
        self.counters = TransferCounters()
        self.kept: dict[str, Sequence] = {}
        self._engine = engine
        self._engine_id = engine_id
        self._lease_s = lease_s
        self._serial = itertools.count()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections to producers."""
        if self._session is not None:
            await self._session.close()

    # --- producer -------------------------------------------------------------------------------------------------

    def keep(self, name: str, sequence: Sequence, address: tuple[str, int]) -> Transfer:
        """Keep the KV of a request that has just ended, for its lease; what a consumer needs to fetch it here."""
        name = f"{name}-{next(self._serial)}"  # clients may send one id again
        self.kept[name] = sequence
        asyncio.get_running_loop().call_later(self._lease_s, self._expire, name)
        return Transfer(
            do_remote_prefill=True,
            remote_engine_id=self._engine_id,
            remote_request_id=name,
            remote_host=address[0],
            remote_port=address[1],
            remote_num_tokens=sequence.prompt,
        )

    def give(self, name: str) -> int | None:
        """A consumer fetches: the tokens, whose blocks are free now; None where there is nothing of that name."""
        sequence = self.kept.pop(name, None)
        if sequence is None:
            self.counters.fetched_too_late += 1
            return None
        self._engine.drop_kv(sequence)
        return sequence.prompt

    def _expire(self, name: str) -> None:
        sequence = self.kept.pop(name, None)
        if sequence is not None:
            self.counters.expired += 1
            self._engine.drop_kv(sequence)

    # --- consumer -------------------------------------------------------------------------------------------------

    async def fetch(self, transfer: Transfer, prompt_tokens: int) -> int:
        """How many tokens of this prompt were fetched: all, or none where the producer has not got them."""
        url = f"http://{transfer.remote_host}:{transfer.remote_port}{FETCH_PATH}"
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_FETCH_TIMEOUT_S))
        tokens = 0
        try:
            body = msgspec.json.encode(Fetch(transfer.remote_request_id or ""))
            async with self._session.post(url, data=body) as answer:
                if answer.status == 200:
                    tokens = msgspec.json.decode(await answer.read(), type=Fetched).tokens
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, msgspec.MsgspecError):
            pass
        if tokens != prompt_tokens:
            self.counters.recomputed += 1
            return 0
        self.counters.fetched += 1
        self.counters.fetched_tokens += tokens
        return tokens
