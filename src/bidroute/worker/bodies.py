"""What a client asks for: the bodies of the OpenAI endpoints, checked as vLLM checks them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from bidroute.worker.settings import WorkerSettings

COMPLETION_TOKENS = 16  # the default `max_tokens` of /v1/completions
SIGMA = 0.8  # of the log-normal output lengths


class RequestError(Exception):
    """The request cannot be served; `status`, `kind` and the message go to the client."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Message(msgspec.Struct):
    """One chat message; `content` is a text or a list of parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(msgspec.Struct):
    """How a stream is to be."""

    include_usage: bool | None = False


class Transfer(msgspec.Struct, omit_defaults=True):
    """vLLM's `kv_transfer_params`: what a KV producer is asked for, and what a consumer fetches the KV with."""

    do_remote_decode: bool | None = False
    do_remote_prefill: bool | None = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int | None = None


class Body(msgspec.Struct):
    """The fields of both endpoints that matter here; others are ignored."""

    model: str | None = None
    prompt: str | list[Any] | None = None
    messages: list[Message] | None = None
    input: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = False
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    kv_transfer_params: Transfer | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request: its tokens, and `natural_end` where it ends before `max_tokens` by itself.

    All its `choices` have the same number of output tokens.
    """

    prompt_tokens: int
    output_tokens: int
    natural_end: bool
    stream: bool
    include_usage: bool
    chat: bool
    choices: int = 1


def decode(raw: bytes, settings: WorkerSettings) -> Body:
    """Read a body and check its model. Raises RequestError."""
    try:
        body = msgspec.json.decode(raw, type=Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise _bad(str(problem)) from None
    if body.model not in (None, "", settings.model):
        raise RequestError(404, "NotFoundError", f"The model `{body.model}` does not exist.")
    return body


def generation(body: Body, settings: WorkerSettings, lengths: Random, *, chat: bool) -> Generation:
    """What is to be generated. Raises RequestError for what vLLM would refuse."""
    choices = 1 if body.n is None else body.n
    if choices < 1:
        raise _bad(f"n must be at least 1, got {choices}.")
    if body.stream_options is not None and not body.stream:
        raise _bad("Stream options can only be defined when `stream=True`.")
    tokens = prompt_tokens(body, settings, chat=chat)
    length = settings.model_length
    if tokens >= length:
        raise _bad(
            f"This model's maximum context length is {length} tokens. However, your request has {tokens} input "
            "tokens. Please reduce the length of the input messages."
        )
    limit = body.max_completion_tokens if chat and body.max_completion_tokens is not None else body.max_tokens
    if limit is None:
        limit = length if chat else COMPLETION_TOKENS
    if limit < 1:
        raise _bad(f"max_tokens must be at least 1, got {limit}.")
    limit = min(limit, length - tokens)
    drawn = max(_drawn_tokens(settings.output_tokens, lengths), body.min_tokens or 0)
    output_tokens = limit if body.ignore_eos else min(limit, drawn)
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    return Generation(tokens, output_tokens, output_tokens < limit, bool(body.stream), include_usage, chat, choices)


def prompt_tokens(body: Body, settings: WorkerSettings, *, chat: bool) -> int:
    """Tokens of the messages of a chat, or of a prompt. Raises RequestError."""
    return _chat_tokens(body, settings) if chat else _prompt_tokens(body.prompt, settings)


def text_tokens(text: str, settings: WorkerSettings) -> int:
    """Tokens of a text, estimated from its bytes."""
    return max(1, math.ceil(len(text.encode("utf-8", "surrogatepass")) / settings.bytes_per_token))


def _drawn_tokens(mean: float, lengths: Random) -> int:
    return max(1, round(lengths.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)))


def _chat_tokens(body: Body, settings: WorkerSettings) -> int:
    if not body.messages:
        raise _bad("messages: expected a list of at least one message")
    return sum(text_tokens(_text(message), settings) for message in body.messages)


def _text(message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join(text for part in message.content if isinstance(text := part.get("text"), str))


def _prompt_tokens(prompt: str | list[Any] | None, settings: WorkerSettings) -> int:
    """Of a text, of token ids, or of a list of just one of these."""
    if isinstance(prompt, str) and prompt:
        return text_tokens(prompt, settings)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(token, int) for token in prompt):
            return len(prompt)
        if len(prompt) == 1:
            return _prompt_tokens(prompt[0], settings)
    raise _bad("prompt: expected one text or one list of token ids, not empty")


def _bad(message: str) -> RequestError:
    return RequestError(400, "BadRequestError", message)
