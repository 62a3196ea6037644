"""The bodies of a request whose prefill and decode run on different workers, and the answer in between.

vLLM's form: the prefill worker is asked for one token with `do_remote_decode` and answers with `kv_transfer_params`,
which the decode worker is given to fetch the KV with.
"""

from __future__ import annotations

import msgspec

from bidroute.router.sse import Usage

_ASK_TO_KEEP = msgspec.Raw(b'{"do_remote_decode":true,"do_remote_prefill":false}')
_ONE = msgspec.Raw(b"1")
# Whatever needs more of a prompt than its KV: several sequences, each with its own, and what is computed from logits.
_UNSPLITTABLE = (b'"prompt_logprobs"', b'"echo"')

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: Usage | None = None


_decode_answer = msgspec.json.Decoder(_Answer, strict=False).decode


class _Transfer(msgspec.Struct):
    do_remote_prefill: bool = False


class Prefilled(msgspec.Struct, frozen=True):
    """What a prefill worker said: the parameters to fetch the KV with, as JSON, and the prompt's true length."""

    params: bytes
    prompt_tokens: int | None


def can_split(body: bytes, sequences: int) -> bool:
    """Whether prefill and decode of this request may run on different workers."""
    return sequences == 1 and not any(field in body for field in _UNSPLITTABLE)


def prefill_body(body: bytes) -> bytes:
    """What a prefill worker is asked: the same, but one token, not streamed, its KV kept to be fetched."""
    fields: dict[str, msgspec.Raw] = _decode_fields(body)
    for left_out in ("stream_options", "min_tokens"):
        fields.pop(left_out, None)
    fields["stream"] = msgspec.Raw(b"false")
    fields["max_tokens"] = _ONE
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    fields["kv_transfer_params"] = _ASK_TO_KEEP
    return msgspec.json.encode(fields)


def decode_body(body: bytes, params: bytes) -> bytes:
    """What a decode worker is asked: the same, and `params` to fetch the prompt's KV with in place of any other."""
    fields: dict[str, msgspec.Raw] = _decode_fields(body)
    fields["kv_transfer_params"] = msgspec.Raw(params)
    return msgspec.json.encode(fields)


def read_prefilled(body: bytes) -> Prefilled | None:
    """What a prefill worker's answer says; None where no KV can be fetched with it."""
    try:
        answer: _Answer = _decode_answer(body)
        params = bytes(answer.kv_transfer_params)
        offered = msgspec.json.decode(params, type=_Transfer | None)
    except msgspec.MsgspecError:
        return None
    if offered is None or not offered.do_remote_prefill:
        return None
    return Prefilled(params, answer.usage.prompt_tokens if answer.usage is not None else None)
