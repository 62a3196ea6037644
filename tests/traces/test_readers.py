"""Each format: one small sound file, and what is recognised as what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bidroute.errors import ConfigError, TraceError
from bidroute.traces import Workload, load_trace
from bidroute.traces.formats import detect_format

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951691,396,109\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 23:59:59.500000+00:00,374,44\n"
    "2024-05-11 00:00:01+00:00,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}\n'
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,8436,975\n0.75,188,734\n"
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n"
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def columns(workload: Workload) -> tuple[list[float], list[int], list[int]]:
    return workload.arrival_s.tolist(), workload.prompt_tokens.tolist(), workload.output_tokens.tolist()


# --- formats with times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (AZURE_2023, ([0.0, 4.3145791], [374, 396], [44, 109])),
        (AZURE_2024, ([0.0, 1.5], [374, 396], [44, 109])),
        (MOONCAKE, ([0.0, 3.053], [6955, 6472], [52, 26])),
        (VIDUR, ([0.0, 0.25], [8436, 188], [975, 734])),
        (BURSTGPT, ([0.0, 40.5], [472, 1087], [18, 230])),
        ("time;input tokens;output-len\n1e-1;5;6\n2;7;8\n", ([0.0, 1.9], [5, 7], [6, 8])),
        ("id\tarrival_ms\tISL\tOSL\nx\t1000\t5\t6\ny\t1500\t7\t8\n", ([0.0, 0.5], [5, 7], [6, 8])),
        ("timestamp,prompt_tokens,output_tokens\n2026-01-01T00:00:00Z,5,6\n2026-01-01T01:00:00+01:00,7,8\n",
         ([0.0, 0.0], [5, 7], [6, 8])),
    ],
)  # fmt: skip
def test_reads_a_sound_file(tmp_path: Path, content: str, expected: tuple[list[float], list[int], list[int]]) -> None:
    for variant in (
        content,
        content.replace("\n", "\r\n"),
        content.replace("\n", "\r"),
        "\ufeff" + content,
        content.rstrip("\n"),
        content + "\n\n",
    ):
        workload = load_trace(write(tmp_path / "trace.x", variant))
        times, prompts, outputs = columns(workload)
        assert times == pytest.approx(expected[0], abs=1e-9)
        assert (prompts, outputs) == expected[1:]
        assert workload.name == "trace"
        assert workload.skipped_rows == 0


def test_column_order_and_extra_columns_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", 'num_decode_tokens,note,ARRIVED_AT,num_prefill_tokens\n9,"a,\nb",1,8.0\n')
    assert columns(load_trace(path)) == ([0.0], [8], [9])


def test_a_prompt_may_be_empty_but_an_output_may_not(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,0,1\n")
    assert columns(load_trace(path)) == ([0.0], [0], [1])


def test_only_the_first_requests_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", VIDUR + "broken\n")
    assert len(load_trace(path, requests=2)) == 2
    assert len(load_trace(path, requests=1)) == 1
    with pytest.raises(TraceError, match="line 4"):
        load_trace(path, requests=3)


# --- detection and overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "name"),
    [(AZURE_2023, "azure"), (MOONCAKE, "mooncake"), (VIDUR, "vidur"), (BURSTGPT, "burstgpt"), ("[ {", "sharegpt"),
     ("t,isl,osl\n", "csv"), ("time,num_prefill_tokens,x\n", "csv")],
)  # fmt: skip
def test_formats_are_recognised_by_content(head: str, name: str) -> None:
    assert detect_format(head, "file").name == name


def test_a_format_can_be_forced_by_argument_and_by_prefix(tmp_path: Path) -> None:
    path = write(tmp_path / "v.csv", VIDUR)
    assert (
        columns(load_trace(path, format_name="csv")) == columns(load_trace(f"csv:{path}")) == columns(load_trace(path))
    )
    with pytest.raises(TraceError, match="line 1: column TIMESTAMP is missing"):
        load_trace(path, format_name="azure")
    with pytest.raises(ConfigError, match=r"choose from: azure, burstgpt, .*, sharegpt, sharegpt-turns, csv"):
        load_trace(path, format_name="excel")


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "g.csv", "When,In,Out,prompt_tokens\n1,2,3,4\n")
    named = load_trace(path, columns={"time": "when", "prompt": "In", "output": "OUT"})
    assert columns(named) == ([0.0], [2], [3])
    assert columns(load_trace(path, columns={"time": "When", "output": "Out"})) == ([0.0], [4], [3])
    with pytest.raises(
        TraceError, match=r"line 1: column 'Until' \(output\) is missing; the header has: when, in, out"
    ):
        load_trace(path, columns={"time": "When", "prompt": "In", "output": "Until"})
    with pytest.raises(ConfigError, match="columns: prompts; expected time, prompt, output"):
        load_trace(path, columns={"prompts": "In"})


# --- ShareGPT -------------------------------------------------------------------------------------------------


def conversation(*turns: tuple[str, str]) -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": speaker, "value": value} for speaker, value in turns]}


def sharegpt(path: Path, conversations: list[dict[str, object]]) -> Path:
    return write(path, json.dumps(conversations, ensure_ascii=False))


def test_sharegpt_takes_the_first_question_that_has_an_answer(tmp_path: Path) -> None:
    path = sharegpt(
        tmp_path / "s.json",
        [
            conversation(("human", "12345678"), ("gpt", "123456789"), ("human", "no"), ("gpt", "no")),
            conversation(("system", "be kind"), ("user", "äö"), ("assistant", "1")),
        ],
    )
    workload = load_trace(path, seed=3, rate_per_s=2.0)
    assert columns(workload)[1:] == ([2, 1], [3, 1])


def test_sharegpt_turns_takes_every_answer_with_all_that_was_said_before_it(tmp_path: Path) -> None:
    path = sharegpt(
        tmp_path / "s.json",
        [
            conversation(("human", "12345678"), ("gpt", "123456789"), ("human", "no"), ("gpt", "no"), ("human", "bye")),
            conversation(("gpt", "1234"), ("system", "be kind"), ("user", "äö"), ("assistant", "1"), ("gpt", "2")),
        ],
    )
    workload = load_trace(f"sharegpt-turns:{path}", seed=3, rate_per_s=2.0)
    assert columns(workload)[1:] == ([2, 6, 4], [3, 1, 1])
    assert np.all(np.diff(workload.arrival_s) > 0.0)
    assert len(load_trace(f"sharegpt-turns:{path}", requests=2)) == 2


def test_sharegpt_turns_counts_a_bad_conversation_once(tmp_path: Path) -> None:
    good = conversation(("human", "1"), ("gpt", "2"), ("human", "3"), ("gpt", "4"))
    path = sharegpt(tmp_path / "s.json", [good, conversation(("gpt", "1"), ("human", "2")), {"turns": []}, good])
    with pytest.raises(TraceError, match="conversation 2: no question followed by an answer in its 2 turns"):
        load_trace(f"sharegpt-turns:{path}")
    workload = load_trace(f"sharegpt-turns:{path}", skip_bad_rows=True)
    assert (len(workload), workload.skipped_rows) == (4, 2)


def test_sharegpt_arrivals_are_poisson_at_the_stated_rate(tmp_path: Path) -> None:
    path = sharegpt(tmp_path / "s.json", [conversation(("human", "hello"), ("gpt", "hello"))] * 4000)
    workload = load_trace(path, seed=3, rate_per_s=5.0)
    gaps = np.diff(workload.arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.06)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.06)
    assert np.array_equal(load_trace(path, seed=3, rate_per_s=5.0).arrival_s, workload.arrival_s)
    assert not np.array_equal(load_trace(path, seed=4, rate_per_s=5.0).arrival_s, workload.arrival_s)


def test_sharegpt_counts_with_the_users_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the optional package tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    path = sharegpt(tmp_path / "s.json", [conversation(("human", "one two three"), ("gpt", "four five"))])
    assert columns(load_trace(path, tokenizer=tmp_path / "tokenizer.json"))[1:] == ([3], [2])
    with pytest.raises(ConfigError, match=r"expected a tokenizer\.json"):
        load_trace(path, tokenizer=tmp_path / "none.json")


# --- the real ones --------------------------------------------------------------------------------------------

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "traces"


@pytest.mark.skipif(not SHARED.exists(), reason="the traces beside the checkout are not there")
@pytest.mark.parametrize(
    ("file", "requests", "last_s", "prompt_mean", "output_mean"),
    [
        ("azure_conv_2023_first_half.csv", 9683, 1743.404143, 1236.961, 221.907),
        ("servegen_r1_peak_first20k.csv", 20_000, 600.1428, 670.867, 832.856),
    ],
)
def test_public_traces(file: str, requests: int, last_s: float, prompt_mean: float, output_mean: float) -> None:
    workload = load_trace(SHARED / file)
    assert len(workload) == requests
    assert workload.arrival_s[0] == 0.0
    assert workload.arrival_s[-1] == pytest.approx(last_s, abs=1e-6)
    assert workload.prompt_tokens.mean() == pytest.approx(prompt_mean, abs=1e-3)
    assert workload.output_tokens.mean() == pytest.approx(output_mean, abs=1e-3)
