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
            mark = _encoded(_MARK)[1:-1]
            chunks = [_encoded(self._chunk(index, _MARK, None)).split(mark) for index in range(generation.choices)]
            self._around = [(b"data: " + before, after + b"\n\n") for before, after in chunks]

    def opening(self) -> bytes:
        """What a stream begins with: the role of each choice, for a chat."""
        if not self.generation.chat:
            return b""
        choice = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        choices = range(self.generation.choices)
        return b"".join(_event({**self._chunk_head, "choices": [{"index": i, **choice}]}) for i in choices)

    def chunks(self, index: int, first: int, last: int) -> bytes:
        """The events of a choice's tokens `first` … `last`, counted from 1; the last one of all says why it ended."""
        if last == self.generation.output_tokens:
            return self.chunks(index, first, last - 1) + _event(self._chunk(index, f" {last}", self._reason))
        before, after = self._around[index]
        return b"".join(b"%b %d%b" % (before, token, after) for token in range(first, last + 1))

    def closing(self) -> bytes:
        """What a stream ends with."""
        if not self.generation.include_usage:
            return DONE
        return _event({**self._chunk_head, "choices": [], "usage": self._usage()}) + DONE

    def whole(self, transfer: Transfer | None = None) -> bytes:
        """The answer to a request that does not stream; `transfer` is what its KV can be fetched with."""
        text = "".join(f" {token}" for token in range(1, self.generation.output_tokens + 1))
        choice: dict[str, Any] = {"logprobs": None, "finish_reason": self._reason}
        if self.generation.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choices = [{"index": index, **choice} for index in range(self.generation.choices)]
        answer = {**self._head, "choices": choices, "usage": self._usage()}
        return _encoded(answer if transfer is None else {**answer, "kv_transfer_params": transfer})

    def _chunk(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        content = {"delta": {"content": text}} if self.generation.chat else {"text": text}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
        return {**self._chunk_head, "choices": [choice]}

    @property
    def _reason(self) -> str:
        return "stop" if self.generation.natural_end else "length"

    def _usage(self) -> dict[str, int]:
        prompt, output = self.generation.prompt_tokens, self.generation.output_tokens * self.generation.choices
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
