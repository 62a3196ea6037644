"""Read from a request's JSON body what routing needs, and leave the bytes as they are."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bidroute.errors import BidrouteError

_OPENING_BRACE = re.compile(rb"\s*\{")


class BadBodyError(BidrouteError):
    """The body is not a request: what is wrong with it, and in which field (None: in all of it)."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BodyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a body says that matters for routing.

    `prompt_bytes` is the text of one prompt (the mean, where `batch` prompts came in one body), `prompt_tokens` its
    length where it came as token ids. `exact_tokens` > 0 is the output length where the body leaves no choice: it
    ignores the end of the text, or wants as many tokens as it allows. `choices` are the sequences the worker will run
    for it in all.
    """

    model: str
    stream: bool
    wants_usage: bool
    prompt_bytes: int
    prompt_tokens: int | None
    max_tokens: int | None
    exact_tokens: int
    choices: int
    batch: int
    priority: float


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Message(msgspec.Struct):
    content: Any = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Common(msgspec.Struct):
    model: str = ""
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: msgspec.Raw = msgspec.Raw(b"null")
    priority: float | None = None


class _Chat(_Common, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")


class _Completion(_Common, kw_only=True):
    prompt: str | list[Any] | None = None


class _ModelOnly(msgspec.Struct):
    model: str = ""


# Not strict: like the workers, it takes "16" for 16.
_decode_chat = msgspec.json.Decoder(_Chat, strict=False).decode
_decode_completion = msgspec.json.Decoder(_Completion, strict=False).decode
_decode_model = msgspec.json.Decoder(_ModelOnly, strict=False).decode


def chat_facts(raw: bytes) -> BodyFacts:
    """Read the body of /v1/chat/completions. Raises BadBodyError."""
    body: _Chat = _decoded(_decode_chat, raw)
    size = len(body.tools) + sum(_content_bytes(message.content) + len(message.tool_calls) for message in body.messages)
    return _facts(body, size, None, 1, body.max_completion_tokens or body.max_tokens)


def completion_facts(raw: bytes) -> BodyFacts:
    """Read the body of /v1/completions. Raises BadBodyError."""
    body: _Completion = _decoded(_decode_completion, raw)
    size, tokens, batch = _prompt_size(body.prompt)
    return _facts(body, size, tokens, batch, body.max_tokens)


def model_of(raw: bytes) -> str:
    """The model that any other body names; "" where it names none. Raises BadBodyError where it is no JSON object."""
    model: str = _decoded(_decode_model, raw).model
    return model


def asking_for_usage(raw: bytes) -> bytes:
    """The same body with `stream_options.include_usage` true, every other value byte for byte as it was."""
    opening = _OPENING_BRACE.match(raw)
    if opening is not None and b'"stream_options"' not in raw:
        return raw[: opening.end()] + b'"stream_options":{"include_usage":true},' + raw[opening.end() :]
    fields: dict[str, msgspec.Raw] = _decoded(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, raw)
    options = msgspec.json.decode(fields.get("stream_options", b"null")) or {}
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode(options | {"include_usage": True}))
    return msgspec.json.encode(fields)


def _decoded(decode: Any, raw: bytes) -> Any:
    try:
        return decode(raw)
    except msgspec.ValidationError as problem:
        message, _, place = str(problem).partition(" - at `$")
        raise BadBodyError(message, place.strip(".`") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadBodyError(f"the body is not valid JSON: {problem}") from None


def _facts(body: _Common, size: int, tokens: int | None, batch: int, max_tokens: int | None) -> BodyFacts:
    options = body.stream_options
    return BodyFacts(
        model=body.model,
        stream=bool(body.stream),
        wants_usage=options is not None and bool(options.include_usage),
        prompt_bytes=size,
        prompt_tokens=tokens,
        max_tokens=None if max_tokens is None else max(max_tokens, 1),
        exact_tokens=_exact_tokens(body, max_tokens or 0),
        choices=max(body.n or 1, body.best_of or 1, 1) * batch,
        batch=batch,
        priority=body.priority or 0.0,
    )


def _exact_tokens(body: _Common, max_tokens: int) -> int:
    """The output length that the body leaves no choice about, else 0: a benchmark's request, mostly."""
    if bytes(body.stop) not in (b"null", b"[]") or not (body.ignore_eos or (body.min_tokens or 0) >= max_tokens):
        return 0
    return max(max_tokens, 0)


def _content_bytes(content: Any) -> int:
    """Bytes of text in a message: a string, or a list of parts of which some have text."""
    if isinstance(content, str):
        return _text_bytes(content)
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return sum(_text_bytes(text) for text in texts if isinstance(text, str))


def _prompt_size(prompt: str | list[Any] | None) -> tuple[int, int | None, int]:
    """Bytes of one prompt, its tokens where given as ids, and how many prompts there are."""
    if prompt is None:
        return 0, None, 1
    if isinstance(prompt, str):
        return _text_bytes(prompt), None, 1
    kinds = {type(part) for part in prompt}
    if kinds == {int}:
        return 0, len(prompt), 1
    if kinds == {str}:
        return -(-sum(map(_text_bytes, prompt)) // len(prompt)), None, len(prompt)
    if kinds == {list} and all(type(token) is int for ids in prompt for token in ids):
        return 0, -(-sum(map(len, prompt)) // len(prompt)), len(prompt)
    raise BadBodyError("prompt must be a string, token ids, or a list of either, and not empty", "prompt")


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
