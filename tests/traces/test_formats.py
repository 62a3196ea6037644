"""The registry, and what the loader guards for formats that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, TextIO

import pytest

from bidroute.errors import ConfigError, TraceError
from bidroute.traces import FORMATS, Row, TraceFormat, load_trace, register_format


class Careless(TraceFormat):
    """`#careless`, then `seconds prompt output`, without a check."""

    name: ClassVar[str] = "careless"

    @classmethod
    def recognises(cls, head: str) -> bool:
        return head.startswith("#careless")

    def records(self, stream: TextIO) -> Iterator[tuple[int, str]]:
        next(stream)
        return enumerate(stream, start=2)

    def row(self, record: str) -> Row:
        seconds, prompt, output = record.split()
        return float(seconds), int(prompt), int(output)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bidroute.traces.formats.FORMATS", dict(FORMATS))
    register_format(Careless)


@pytest.mark.usefixtures("careless")
def test_a_registered_format_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("#careless\n0.5 100 20\n0.75 80 10\n")
    assert load_trace(path).arrival_s.tolist() == [0.0, 0.25]


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nan 1 1", "time is nan; expected a finite number"),
        ("inf 1 1", "time is inf; expected a finite number"),
        ("0 1 1", "time 0 s is before that of the row ahead, 0.5 s; sort the trace by time"),
        ("1 1 0", "1 prompt and 0 output tokens; expected 0 and 1, or more"),
        ("1 -1 5", "-1 prompt and 5 output tokens; expected 0 and 1, or more"),
        ("1 1", "not enough values to unpack"),
    ],
)
def test_the_loader_checks_what_a_format_does_not(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(f"#careless\n0.5 100 20\n{row}\n")
    with pytest.raises(TraceError, match=f"line 3: {reason}"):
        load_trace(path)


def test_a_name_can_be_registered_once() -> None:
    with pytest.raises(ConfigError, match="'azure' is registered twice"):
        register_format(FORMATS["azure"])
