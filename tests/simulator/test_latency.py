from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.errors import ConfigError
from bidroute.simulator import (
    affine_decode,
    affine_prefill,
    kv_capacity,
    latency_names,
    parse_decode_latency,
    parse_prefill_latency,
    table_decode,
    table_prefill,
)


def test_affine_is_its_formula_to_a_nanosecond() -> None:
    model = parse_decode_latency("affine:0.006,5e-5,5.086e-8")
    assert model.seconds(64, 90_000) == pytest.approx(0.006 + 64 * 5e-5 + 90_000 * 5.086e-8, abs=1e-9)
    assert parse_prefill_latency("affine:0.003,6.4e-5").seconds(374) == pytest.approx(0.026936, abs=1e-9)


def test_minimum_holds_from_below_only() -> None:
    model = affine_decode(0.0001, 0.0, 1e-6, minimum_s=0.001)
    assert model.seconds(1, 10) == 0.001
    assert model.seconds(1, 2000) == pytest.approx(0.0021)


def test_table_is_linear_along_a_batch_size_and_between_two() -> None:
    model = table_decode(
        "t",
        {
            2: (np.array([10.0, 20.0, 40.0]), np.array([1.0, 2.0, 3.0])),
            4: (np.array([10.0, 40.0]), np.array([2.0, 5.0])),
        },
    )
    assert model.seconds(2, 20) == 2.0
    assert model.seconds(2, 30) == 2.5
    assert model.seconds(4, 20) == 3.0
    assert model.seconds(3, 20) == 2.5
    assert model.seconds(3, 30) == 3.25


def test_table_goes_on_beyond_its_ends_along_its_outermost_lines() -> None:
    model = table_decode(
        "t",
        {1: (np.array([10.0, 20.0]), np.array([1.0, 2.0])), 2: (np.array([10.0, 20.0]), np.array([2.0, 3.0]))},
    )
    assert model.seconds(1, 50) == pytest.approx(5.0)
    assert model.seconds(4, 10) == pytest.approx(4.0)
    assert model.seconds(1, 5) == pytest.approx(0.5)
    prefill = table_prefill("p", np.array([10.0, 20.0, 40.0]), np.array([1.0, 2.0, 3.0]))
    assert [prefill.seconds(tokens) for tokens in (10, 15, 30, 60)] == pytest.approx([1.0, 1.5, 2.5, 4.0])


@pytest.mark.parametrize("name", latency_names())
def test_packaged_tables_grow_with_the_work(name: str) -> None:
    decode, prefill = parse_decode_latency(name), parse_prefill_latency(name)
    capacity = kv_capacity(name)
    assert 0.001 < decode.seconds(1, 512) < decode.seconds(64, 100_000) < decode.seconds(256, capacity) < 1.0
    assert 0.001 < prefill.seconds(100) < prefill.seconds(2000) < prefill.seconds(40_000) < 20.0


def test_packaged_table_returns_its_own_rows() -> None:
    assert parse_decode_latency("llama-3.1-8b-h100").seconds(1, 64) == pytest.approx(0.006122922, abs=1e-9)
    assert parse_prefill_latency("llama-3.1-8b-h100").seconds(16) == pytest.approx(0.007171883, abs=1e-9)
    assert kv_capacity("llama-3.1-70b-4xh100") == 454_016


@given(batch=st.integers(1, 256), context=st.integers(64, 1700))
def test_packaged_decode_lies_near_its_affine_fit(batch: int, context: int) -> None:
    kv_tokens = batch * context
    seconds = parse_decode_latency("llama-3.1-70b-4xh100").seconds(batch, kv_tokens)
    assert seconds == pytest.approx(0.01522 + 3.18e-5 * batch + 2.78e-8 * kv_tokens, rel=0.05)


@pytest.mark.parametrize("text", ["affine:1,2", "affine:a,b,c", "affine:", "affine:1,2,3,4"])
def test_malformed_affine_says_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="expected affine:A,B,C, 3 numbers"):
        parse_decode_latency(text)


@pytest.mark.parametrize("text", ["affine:nan,0,0", "affine:0,-1,0", "affine:0,0,inf"])
def test_durations_must_be_finite_and_not_negative(text: str) -> None:
    with pytest.raises(ConfigError, match="expected finite seconds, 0 or more"):
        parse_decode_latency(text)
    with pytest.raises(ConfigError):
        affine_prefill(0.0, math.nan)


def test_unknown_names_list_the_known() -> None:
    for parse in (parse_decode_latency, parse_prefill_latency, kv_capacity):
        with pytest.raises(ConfigError, match=r"'h100' is unknown.*llama-3.1-8b-h100"):
            parse("h100")


def test_tables_need_two_points() -> None:
    with pytest.raises(ConfigError, match="two batch sizes"):
        table_decode("t", {1: (np.array([1.0, 2.0]), np.array([1.0, 2.0]))})
    with pytest.raises(ConfigError, match="expected two or more"):
        table_prefill("t", np.array([1.0]), np.array([1.0]))
