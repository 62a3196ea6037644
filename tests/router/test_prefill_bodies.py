"""What prefill and decode workers are asked, and what is made of their answers."""

from __future__ import annotations

import json

import pytest

from bidroute.router.prefill_bodies import can_split, decode_body, prefill_body, read_prefilled

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "é"}],
    "max_completion_tokens": 70,
    "min_tokens": 5,
    "temperature": 0.25,
    "stream": True,
    "stream_options": {"include_usage": True},
    "kv_transfer_params": {"remote_host": "elsewhere"},
}
PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": "h", "remote_block_ids": [[1, 2]]}


def test_a_prefill_is_one_token_that_is_not_streamed() -> None:
    asked = json.loads(prefill_body(json.dumps(CHAT).encode()))
    assert asked == {
        "model": "m",
        "messages": CHAT["messages"],
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "temperature": 0.25,
        "stream": False,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    assert "max_completion_tokens" not in json.loads(prefill_body(b'{"prompt": "x", "max_tokens": 9}'))


def test_a_decode_worker_gets_the_clients_body_and_what_to_fetch_the_kv_with() -> None:
    asked = json.loads(decode_body(json.dumps(CHAT).encode(), json.dumps(PARAMS).encode()))
    assert asked == CHAT | {"kv_transfer_params": PARAMS}
    odd = b'{"prompt":"x","kv_transfer\\u005fparams":{"remote_host":"elsewhere"}}'
    assert json.loads(decode_body(odd, b"{}")) == {"prompt": "x", "kv_transfer_params": {}}


def test_values_stay_as_they_were_written() -> None:
    body = b'{"prompt":[1,2],"seed":12345678901234567890123,"temperature":0.10}'
    for made in (prefill_body(body), decode_body(body, b"{}")):
        assert b"12345678901234567890123" in made
        assert b"0.10" in made


def test_an_answer_says_how_to_fetch_the_kv_and_how_long_the_prompt_was() -> None:
    answer = {"choices": [{}], "usage": {"prompt_tokens": 31, "completion_tokens": 1}, "kv_transfer_params": PARAMS}
    found = read_prefilled(json.dumps(answer).encode())
    assert found is not None
    assert (json.loads(found.params), found.prompt_tokens) == (PARAMS, 31)
    found = read_prefilled(json.dumps({"kv_transfer_params": PARAMS}).encode())
    assert found is not None
    assert found.prompt_tokens is None


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"nonsense",
        b"[]",
        b'{"kv_transfer_params":null}',
        b'{"kv_transfer_params":7}',
        b'{"kv_transfer_params":{}}',
        b'{"kv_transfer_params":{"do_remote_prefill":false}}',
    ],
)
def test_an_answer_without_kv_is_none(answer: bytes) -> None:
    assert read_prefilled(answer) is None


def test_what_can_be_split() -> None:
    assert can_split(b'{"prompt":"say \\"echo\\""}', 1)
    assert not can_split(b"{}", 2)
    assert not can_split(b'{"prompt_logprobs":1}', 1)
    assert not can_split(b'{"echo": true}', 1)
