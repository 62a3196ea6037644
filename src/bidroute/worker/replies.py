"""What goes back to the client: JSON answers, and the chunks of a stream.

The text of the k-th token is its number, " k", so that a client can see whether one is lost or comes twice.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from bidroute.worker.bodies import Generation, Transfer

DONE = b"data: [DONE]\n\n"
_MARK = "\x00"


class Replies:
    """The answers to one request. The constant part of a chunk is encoded once."""

    def __init__(self, generation: Generation, request_id: str, model: str) -> None:
        self.generation = generation
        self.name = request_id
        kind = "chat.completion" if generation.chat else "text_completion"
        self._head = {"id": request_id, "object": kind, "created": int(time.time()), "model": model}
        if generation.stream:
            chunk_kind = "chat.completion.chunk" if generation.chat else kind
            self._chunk_head = {**self._head, "object": chunk_kind}
            self._before, self._after = _encoded(self._chunk(_MARK, None)).split(_encoded(_MARK)[1:-1])
            self._before = b"data: " + self._before
            self._after += b"\n\n"

    def opening(self) -> bytes:
        """What a stream begins with: the role, for a chat."""
        if not self.generation.chat:
            return b""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return _event({**self._chunk_head, "choices": [choice]})

    def chunks(self, first: int, last: int) -> bytes:
        """The events of tokens `first` … `last`, counted from 1; the last one of all says why it ended."""
        if last == self.generation.output_tokens:
            return self.chunks(first, last - 1) + _event(self._chunk(f" {last}", self._reason))
        return b"".join(b"%b %d%b" % (self._before, token, self._after) for token in range(first, last + 1))

    def closing(self) -> bytes:
        """What a stream ends with."""
        if not self.generation.include_usage:
            return DONE
        return _event({**self._chunk_head, "choices": [], "usage": self._usage()}) + DONE

    def whole(self, transfer: Transfer | None = None) -> bytes:
        """The answer to a request that does not stream; `transfer` is what its KV can be fetched with."""
        text = "".join(f" {token}" for token in range(1, self.generation.output_tokens + 1))
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._reason}
        if self.generation.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        answer = {**self._head, "choices": [choice], "usage": self._usage()}
        return _encoded(answer if transfer is None else {**answer, "kv_transfer_params": transfer})

    def _chunk(self, text: str, reason: str | None) -> dict[str, Any]:
        content = {"delta": {"content": text}} if self.generation.chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return {**self._chunk_head, "choices": [choice]}

    @property
    def _reason(self) -> str:
        return "stop" if self.generation.natural_end else "length"

    def _usage(self) -> dict[str, int]:
        prompt, output = self.generation.prompt_tokens, self.generation.output_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def error(status: int, kind: str, message: str) -> dict[str, Any]:
    """An error in vLLM's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_event(status: int, kind: str, message: str) -> bytes:
    """An error inside a stream."""
    return _event(error(status, kind, message))


def _encoded(data: Any) -> bytes:
    return msgspec.json.encode(data)


def _event(data: Any) -> bytes:
    return b"data: " + _encoded(data) + b"\n\n"
