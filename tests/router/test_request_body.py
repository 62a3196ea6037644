"""What is read from bodies, and the one thing that is changed in them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.router.request_body import BadBodyError, asking_for_usage, chat_facts, completion_facts, model_of


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_chat() -> None:
    parts = [{"type": "text", "text": "né"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    messages = [{"role": "system", "content": "abcd"}, {"role": "user", "content": parts}, {"role": "assistant"}]
    facts = chat_facts(encoded(model="m", messages=messages, stream=True, max_completion_tokens=9, n=2, priority=-3))
    assert (facts.model, facts.stream, facts.wants_usage, facts.max_tokens) == ("m", True, False, 9)
    assert (facts.prompt_bytes, facts.prompt_tokens, facts.choices, facts.priority) == (7, None, 2, -3.0)


@pytest.mark.parametrize(
    ("prompt", "size", "tokens", "choices"),
    [("abc", 3, None, 3), (["ab", "abcd"], 3, None, 6), ([1, 2, 3, 4], 0, 4, 3), ([[1, 2], [3]], 0, 2, 6)],
)
def test_a_completion(prompt: Any, size: int, tokens: int | None, choices: int) -> None:
    facts = completion_facts(encoded(model="m", prompt=prompt, n=3, stream_options={"include_usage": True}))
    assert (facts.prompt_bytes, facts.prompt_tokens, facts.choices, facts.wants_usage) == (size, tokens, choices, True)


@pytest.mark.parametrize(
    ("fields", "exact_tokens"),
    [
        ({"max_tokens": 9, "ignore_eos": True}, 9),
        ({"max_tokens": 9, "min_tokens": 9}, 9),
        ({"max_tokens": 9, "min_tokens": 8}, 0),
        ({"max_tokens": 9}, 0),
        ({"ignore_eos": True}, 0),
        ({"min_tokens": 4}, 0),
        ({"max_tokens": 9, "ignore_eos": True, "stop": []}, 9),
        ({"max_tokens": 9, "ignore_eos": True, "stop": None}, 9),
        ({"max_tokens": 9, "ignore_eos": True, "stop": ["x"]}, 0),
        ({"max_tokens": 9, "ignore_eos": True, "stop": "x"}, 0),
        ({"max_tokens": -1, "ignore_eos": True}, 0),
    ],
)
def test_a_length_that_the_body_fixes(fields: dict[str, Any], exact_tokens: int) -> None:
    assert completion_facts(encoded(model="m", prompt="a", **fields)).exact_tokens == exact_tokens
    assert chat_facts(encoded(model="m", messages=[], **fields)).exact_tokens == exact_tokens


def test_tools_count_as_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain = chat_facts(encoded(model="m", messages=[]))
    assert chat_facts(encoded(model="m", messages=[], tools=tools)).prompt_bytes == len(json.dumps(tools))
    assert plain.prompt_bytes == 0


def test_numbers_in_quotes_and_nulls_are_taken() -> None:
    facts = completion_facts(encoded(model="m", prompt="a", max_tokens="16", n=None, stream=None, stream_options=None))
    assert (facts.max_tokens, facts.choices, facts.stream) == (16, 1, False)


BAD = [b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b'{"prompt":"\xff"}']
BAD_FIELDS = ['"prompt":[]', '"prompt":[1,"a"]', '"prompt":[[1],["a"]]', '"prompt":5', '"prompt":[true]', '"model":5']
BAD_FIELDS += ['"n":"x"', '"stream_options":1', '"max_tokens":1e400', '"stream":"maybe"', '"priority":[]']


@pytest.mark.parametrize("body", BAD + [f"{{{field}}}".encode() for field in BAD_FIELDS])
def test_bad_bodies(body: bytes) -> None:
    with pytest.raises(BadBodyError) as problem:
        completion_facts(body)
    assert "\n" not in problem.value.message


def test_a_bad_field_is_named() -> None:
    with pytest.raises(BadBodyError) as problem:
        chat_facts(b'{"model":"m","messages":{}}')
    assert problem.value.param == "messages"
    assert chat_facts(b'{"messages":[]}').model == ""
    assert model_of(b'{"model":"e","input":[1]}') == "e"


def test_usage_is_asked_for_without_touching_the_rest() -> None:
    body = b'  {"model":"m",  "temperature": 1.0, "seed":12345678901234567890123}'
    asked = asking_for_usage(body)
    assert asked == b'  {"stream_options":{"include_usage":true},' + body[3:]


@pytest.mark.parametrize("options", ["null", "{}", '{"include_usage":false,"continuous_usage_stats":true}'])
def test_options_that_are_there_are_kept(options: str) -> None:
    body = f'{{"model":"m","x":1.50,"stream_options":{options},"y":[1, 2]}}'.encode()
    asked = asking_for_usage(body)
    expected = (json.loads(options) or {}) | {"include_usage": True}
    assert json.loads(asked)["stream_options"] == expected
    assert b"1.50" in asked
    assert b"[1, 2]" in asked


@given(
    st.dictionaries(st.sampled_from('abc"é{'), st.integers() | st.sampled_from(["", "\\", "}{"]), min_size=1),
    st.booleans(),
)
def test_asking_changes_one_field_only(fields: dict[str, Any], present: bool) -> None:
    fields.pop("stream_options", None)
    body = fields | {"model": "m"} | ({"stream_options": {"include_usage": False}} if present else {})
    asked = json.loads(asking_for_usage(json.dumps(body).encode()))
    assert asked == body | {"stream_options": {"include_usage": True}}


@given(st.binary(max_size=60))
def test_any_bytes_are_facts_or_a_clear_error(body: bytes) -> None:
    for read in (chat_facts, completion_facts, model_of):
        with contextlib.suppress(BadBodyError):
            read(body)
