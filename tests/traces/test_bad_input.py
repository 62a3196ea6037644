"""Every kind of bad input is refused in one line with file, line and reason, or skipped and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.errors import BidrouteError, ConfigError, TraceError
from bidroute.traces import FORMATS, load_trace

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
LINE = '{{"timestamp": {}, "input_length": {}, "output_length": {}}}\n'.format
Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str | bytes) -> Path:
        path = tmp_path / "trace.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to_file


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(TraceError) as caught:
        load_trace(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("good", "bad", "reason"),
    [
        (VIDUR + "0,1,1\n", "1,2\n", "line 3: 2 fields; expected 3"),
        (VIDUR + "0,1,1\n", "1,many,2\n", "line 3: num_prefill_tokens is 'many'; expected a number"),
        (VIDUR + "0,1,1\n", "1,,2\n", "line 3: num_prefill_tokens is empty; expected a number"),
        (VIDUR + "0,1,1\n", "1,-5,2\n", "line 3: num_prefill_tokens is -5; expected 0 or more tokens"),
        (VIDUR + "0,1,1\n", "1,5,0\n", "line 3: num_decode_tokens is 0; expected 1 or more tokens"),
        (VIDUR + "0,1,1\n", "1,2.5,2\n", "line 3: num_prefill_tokens is '2.5'; expected a whole number of tokens"),
        (VIDUR + "0,1,1\n", "1,1e30,2\n", "line 3: num_prefill_tokens is 1e30; expected 1000000000 tokens at most"),
        (VIDUR + "0,1,1\n", "1,nan,2\n", "line 3: num_prefill_tokens is nan; expected a finite number"),
        (VIDUR + "0,1,1\n", "1,1_000,2\n", "line 3: num_prefill_tokens is '1_000'; expected a number"),
        (VIDUR + "0,1,1\n", "nan,1,2\n", "line 3: arrived_at is nan; expected a finite number"),
        (VIDUR + "0,1,1\n", "inf,1,2\n", "line 3: arrived_at is inf; expected a finite number"),
        (VIDUR + "0,1,1\n", "-1,1,2\n", "line 3: arrived_at is -1; expected a time of 0 or more"),
        (VIDUR + "5,1,1\n", "4,1,2\n", "line 3: time 4 s is before that of the row ahead, 5 s; sort the trace by time"),
        (AZURE + "2023-11-16 18:15:46.68,1,1\n", "yesterday,1,1\n", "line 3: TIMESTAMP is 'yesterday'; expected"),
        (AZURE + "2023-11-16 18:15:46.68,1,1\n", "2023-11-16 18:15:45,1,1\n", "line 3: time -1.68 s is before that"),
        (BURSTGPT + "5,a,1,1,2,x\n", "6,a,7,0,7,x\n", "line 3: Response tokens is 0, so the request failed; skip bad"),
        (LINE(0, 1, 1), '{"timestamp": 1, "input_le', "line 2: Input data was truncated; expected an object with"),
        (LINE(0, 1, 1), '{"timestamp": 1, "input_length": 2}\n', "line 2: Object missing required field `output"),
        (LINE(0, 1, 1), LINE('"a"', 1, 1), "line 2: Expected `float`, got `str`"),
        (LINE(0, 1, 1), LINE("NaN", 1, 1), "line 2: JSON is malformed"),
        (LINE(0, 1, 1), LINE(-1, 1, 1), "line 2: timestamp is -1; expected a time of 0 or more"),
        (LINE(0, 1, 1), LINE(1, -1, 1), "line 2: input_length is -1; expected 0 or more tokens"),
        (LINE(0, 1, 1), LINE(1, 1, 0), "line 2: output_length is 0; expected 1 or more tokens"),
        (LINE(9, 1, 1), LINE(8, 1, 1), "line 2: time 0.008 s is before that of the row ahead, 0.009 s"),
        ("isl,osl,time\n1,1,0\n", "1,1,soon\n", "line 3: time is 'soon'; expected a number"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_or_skipped(write: Write, good: str, bad: str, reason: str) -> None:
    path = write(good + bad)
    assert refusal(path).startswith(f", {reason}")
    workload = load_trace(path, skip_bad_rows=True)
    assert (len(workload), workload.skipped_rows) == (1, 1)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ('[{"from": "gpt", "value": "hello"}]', "no question followed by an answer in its 1 turns"),
        ('[{"from": "human", "value": "a"}, {"from": "gpt", "value": ""}]', "the answer is empty"),
        ('[{"from": "human", "value": 7}]', "Expected `str`, got `int`"),
        ("7", "Expected `array`, got `int`"),
    ],
)
def test_a_bad_conversation_is_refused_or_skipped(write: Write, turns: str, reason: str) -> None:
    good = '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}'
    path = write(f'[{good}, {{"conversations": {turns}}}, {good}]')
    assert refusal(path).startswith(f", conversation 2: {reason}")
    workload = load_trace(path, skip_bad_rows=True)
    assert (len(workload), workload.skipped_rows) == (2, 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", ": the file is empty; expected at least one request"),
        (" \n\n", ": the file is empty"),
        (VIDUR, ": no requests: the file has none; expected at least one"),
        ("[]", ": no requests: the file has none"),
        ("arrived_at,num_prefill_tokens\n0,1\n", ", line 1: column num_decode_tokens is missing; the header has: arr"),
        ("TIMESTAMP,ContextTokens\n", ", line 1: column GeneratedTokens is missing"),
        ("time,prompt_tokens,size\n0,1,2\n", ", line 1: no output column; the header has: time, prompt_tokens, size"),
        ("0.0,10,20\n1.0,10,20\n", ": no known trace format; it begins with '0.0,10,20'; expected azure, burstgpt"),
        ("once upon a time", ": no known trace format; it begins with 'once upon a time'"),
        ("[1, 2", ", conversation 1: not a JSON list of conversations: Input data was truncated"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", ": not UTF-8 text (it has NUL bytes); expected a CSV or JSON trace, in UTF-8"),
        (VIDUR.encode("utf-16"), ": not UTF-8 text"),
        (bytes(range(128, 256)) * 4, ": no known trace format; it begins with"),
        (VIDUR.encode() + b"0,\xff\xfe,1\n", ", line 2: num_prefill_tokens is '\\udcff\\udcfe'; expected a number"),
        (LINE(0, 1, 1).encode() + b"{\xff}", ", line 2: 'utf-8' codec can't encode"),
        (b"time,isl,\x1b\xff\n", ", line 1: no output column; the header has: time, isl, \\x1b\\udcff; expected"),
        (",".join(["time", "isl", *map(str, range(5000))]), ", line 1: no output column; the header has: time, isl, 0"),
        (VIDUR + '0,1,1\n"' + "x" * 200_000, ", line 3: not CSV: field larger than field limit"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(write: Write, content: str | bytes, reason: str) -> None:
    assert refusal(write(content)).startswith(reason)


def test_when_all_rows_are_bad_the_first_reason_is_told(write: Write) -> None:
    message = refusal(write(VIDUR + "0,1,0\n0,1,x\n"), skip_bad_rows=True)
    assert message.startswith(": no requests: 2 bad rows, the first: line 2: num_decode_tokens is 0; expected 1")


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == ": no such file; expected a trace file or builtin:NAME"
    assert refusal(tmp_path) == ": is a directory; expected a trace file"


def test_wrong_settings_are_refused(write: Write) -> None:
    path = write(VIDUR + "0,1,1\n")
    with pytest.raises(ConfigError, match="requests: 0; expected 1 or more"):
        load_trace(path, requests=0)
    with pytest.raises(ConfigError, match="rate_per_s: nan; expected a positive number"):
        load_trace(path, rate_per_s=float("nan"))
    with pytest.raises(ConfigError, match="choose from: azure-conv-like, azure-code-like"):
        load_trace("builtin:nothing")


@given(content=st.binary(max_size=300), name=st.sampled_from([None, *FORMATS]), skip=st.booleans())
@settings(deadline=None, max_examples=300)
def test_no_file_content_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str | None, skip: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.write_bytes(content)
    try:
        load_trace(path, format_name=name, skip_bad_rows=skip)
    except BidrouteError as error:
        assert "\n" not in str(error)  # noqa: PT017


@given(
    row=st.text(alphabet='0123456789.,-+e"nainf:T Z{}[]', max_size=40), name=st.sampled_from(["azure", "vidur", "csv"])
)
@settings(deadline=None, max_examples=300)
def test_no_row_escapes_as_another_error(tmp_path_factory: pytest.TempPathFactory, row: str, name: str) -> None:
    header = {"azure": AZURE, "vidur": VIDUR, "csv": "time,isl,osl\n"}[name]
    path = tmp_path_factory.getbasetemp() / "rows"
    path.write_text(header + row, encoding="utf-8")
    try:
        load_trace(path)
    except BidrouteError as error:
        assert "\n" not in str(error)  # noqa: PT017
