"""The parts of a replay that need no server."""

from __future__ import annotations

import math

import pytest

from bidroute.errors import ConfigError
from bidroute.replay.prompts import Prompts
from bidroute.replay.scraping import total
from bidroute.replay.settings import ReplaySettings, workload_of
from bidroute.replay.streams import AnswerStream

TARGET = "http://127.0.0.1:1"
STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\r\n\r\n'
    b": a comment\n\n"
    b'data: {"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.mark.parametrize("size", [1, 7, 64, len(STREAM)])
def test_a_stream_reads_the_same_however_it_is_cut(size: int) -> None:
    answer = AnswerStream()
    started = []
    for at in range(0, len(STREAM), size):
        answer.feed(STREAM[at : at + size])
        started.append(answer.started)
    assert (answer.chunks, answer.done, answer.error) == (2, True, None)
    assert answer.usage == {"prompt_tokens": 4, "completion_tokens": 2}
    assert started[-1]
    if size == 1:
        assert not started[STREAM.index(b'"a"')]  # the role is not a token


@pytest.mark.parametrize("event", [b'{"error":{"message":"out of memory"}}', b"{", b'"error"'])
@pytest.mark.parametrize("before", [b"", b'data: {"choices":[{"text":"a"}]}\n\n'])
def test_errors_inside_a_stream(event: bytes, before: bytes) -> None:
    answer = AnswerStream()
    answer.feed(before + b"data: " + event + b"\n\n")
    assert answer.error is not None or event == b"{"  # in the middle, what is no error is not read
    assert answer.chunks <= 2


@pytest.mark.parametrize("bytes_per_token", [0.7, 1.0, 2.5, 4.0, 6.3])
def test_prompts_have_the_bytes_wanted_and_differ_from_the_first_word_on(bytes_per_token: float) -> None:
    prompts = Prompts(bytes_per_token, seed=1)
    for tokens in (1, 2, 10, 1000):
        text = prompts.text(tokens)
        assert len(text.encode()) == max(1, round(tokens * bytes_per_token))
    if bytes_per_token >= 2.5:
        assert len({prompts.text(50).split(" ")[0] for _ in range(20)}) > 10
    assert Prompts(4.0, seed=2).text(9) == Prompts(4.0, seed=2).text(9)


def test_metrics_are_summed_over_labels() -> None:
    page = 'vllm:num_preemptions_total{engine="0"} 6.0\nvllm:num_preemptions_total{engine="1"} 1.0\n# vllm:other 3\n'
    assert total(page, ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total")) == 7.0
    assert total("sglang:num_queue_reqs 4.0\n", ("sglang:num_queue_reqs",)) == 4.0
    assert total('vllm:num_preemptions_created{engine="0"} 1.7e9\n', ("vllm:num_preemptions",)) == 0.0


def test_the_rate_is_the_mean_rate_of_arrivals() -> None:
    workload, speedup = workload_of(ReplaySettings(TARGET, requests=101, rate_per_s=20.0), seed=0)
    assert math.isclose(workload.arrival_s[-1], 100 / 20.0)
    assert speedup > 1.0
    natural, one = workload_of(ReplaySettings(TARGET, requests=101), seed=0)
    assert one == 1.0
    assert math.isclose(natural.arrival_s[-1], workload.arrival_s[-1] * speedup)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "localhost:8000"},
        {"scrape": ("ftp://x",)},
        {"speedup": 2.0, "rate_per_s": 1.0},
        {"speedup": 0.0},
        {"rate_per_s": math.nan},
        {"timeout_s": -1.0},
        {"bytes_per_token": 0.0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ReplaySettings(**{"target": TARGET, **wrong})


def test_the_address_may_end_as_openai_clients_have_it() -> None:
    assert {ReplaySettings(TARGET + end).base for end in ("", "/", "/v1", "/v1/")} == {TARGET}
