"""A worker that answers at once and costs almost nothing: canned bytes on bare sockets, with vLLM's pages.

A completion is `max_tokens` long. Whole answers come at once; of streams every one gets one chunk per step, each in a
write of its own, as from an engine that runs them in one batch. `--gap-ms` is the time of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import cast

import uvloop

MODEL = "bench"
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_MOST_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')  # sglang-router gives it its newer name
_STREAM = re.compile(rb'"stream":\s*true')
_USAGE = re.compile(rb'"include_usage":\s*true')
_METRICS = (
    b'vllm:num_requests_running{engine="0"} %d\nvllm:num_requests_waiting{engine="0"} 0\n'
    b'vllm:kv_cache_usage_perc{engine="0"} 0.1\n'
    b'vllm:cache_config_info{num_gpu_blocks="100001",block_size="16"} 1\n'
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2024 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _framed(event: bytes) -> bytes:
    data = b"data: %b\n\n" % event
    return b"%x\r\n%b\r\n" % (len(data), data)


def _object(kind: str, **fields: object) -> bytes:
    known = {"id": "chatcmpl-0123456789abcdef", "object": kind, "created": 1_700_000_000, "model": MODEL}
    return json.dumps(known | fields, separators=(",", ":")).encode()


def _choice(finish: str | None, **said: object) -> list[dict[str, object]]:
    return [{"index": 0, **said, "logprobs": None, "finish_reason": finish, "token_ids": None}]


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 250, "total_tokens": 250 + tokens, "completion_tokens": tokens}


_CHUNK = _framed(_object("chat.completion.chunk", choices=_choice(None, delta={"content": " token"})))
_END = _framed(b"[DONE]") + b"0\r\n\r\n"


def _page(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: %b\r\n\r\n"
    return head % (status, len(body), kind) + body


def _whole(tokens: int) -> bytes:
    message = {"role": "assistant", "content": " token" * tokens}
    return _page(_object("chat.completion", choices=_choice("length", message=message), usage=_usage(tokens)))


class Engine:
    """All streams of this worker; one step gives each of them a chunk."""

    def __init__(self, gap_s: float, batch_slots: int) -> None:
        self.streams: set[Stream] = set()
        self.gap_s, self.batch_slots = gap_s, batch_slots
        self._stepping = False

    def add(self, stream: Stream) -> None:
        self.streams.add(stream)
        if not self._stepping:
            self._stepping = True
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + self.gap_s, self._step, loop.time() + self.gap_s)

    def _step(self, due_s: float) -> None:
        for stream in list(self.streams):
            stream.step()
        self._stepping = bool(self.streams)
        if self._stepping:
            loop = asyncio.get_running_loop()
            next_s = max(due_s + self.gap_s, loop.time())
            loop.call_at(next_s, self._step, next_s)

    def pages(self) -> dict[bytes, bytes]:
        model = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 8192}
        told: dict[bytes, object] = {
            b"/v1/models": {"object": "list", "data": [model]},
            b"/server_info": {"vllm_config": {"scheduler_config": {"max_num_seqs": self.batch_slots}}},
            b"/get_model_info": {"model_path": MODEL},
        }
        pages = {path: _page(json.dumps(body).encode()) for path, body in told.items()}
        return pages | {b"/metrics": _page(_METRICS % len(self.streams), b"text/plain"), b"/health": _page(b"")}


class Stream:
    """One stream on its way."""

    def __init__(self, transport: asyncio.Transport, tokens: int, usage: bool) -> None:
        self.transport, self.left, self.tokens, self.usage = transport, tokens, tokens, usage

    def step(self) -> None:
        if self.left:
            self.left -= 1
            self.transport.write(_CHUNK)
        if not self.left:
            usage = _object("chat.completion.chunk", choices=[], usage=_usage(self.tokens))
            self.transport.write((_framed(usage) if self.usage else b"") + _END)
            ENGINE.streams.discard(self)


class Connection(asyncio.Protocol):
    """One connection of a router."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.held = b""
        self.stream: Stream | None = None

    def connection_lost(self, problem: Exception | None) -> None:
        if self.stream is not None:
            ENGINE.streams.discard(self.stream)

    def data_received(self, data: bytes) -> None:
        data = self.held + data
        end = data.find(b"\r\n\r\n")
        length = _LENGTH.search(data, 0, end) if end >= 0 else None
        if end < 0 or len(data) < end + 4 + (int(length[1]) if length else 0):
            self.held = data
            return
        self.held = b""
        if data.startswith(b"GET"):
            path = data.split(b" ", 2)[1].partition(b"?")[0]
            self.transport.write(ENGINE.pages().get(path) or _page(b"{}", status=b"404 Not Found"))
        else:
            self._complete(data, end)

    def _complete(self, data: bytes, end: int) -> None:
        most = _MOST_TOKENS.search(data, end)
        tokens = int(most[1]) if most else 1
        if _STREAM.search(data, end):
            self.transport.write(_STREAM_HEAD)
            self.stream = Stream(self.transport, tokens, bool(_USAGE.search(data, end)))
            ENGINE.add(self.stream)
        else:
            self.transport.write(_WHOLE.get(tokens) or _WHOLE.setdefault(tokens, _whole(tokens)))


_WHOLE: dict[int, bytes] = {}
ENGINE: Engine


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    global ENGINE
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gap-ms", type=float, default=10.0)
    parser.add_argument("--batch-slots", type=int, default=256)
    given = parser.parse_args()
    ENGINE = Engine(given.gap_ms / 1000.0, given.batch_slots)
    uvloop.run(_serve(given.port))


if __name__ == "__main__":
    main()
