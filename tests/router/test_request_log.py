"""Log lines: JSON, gathered for a moment on the loop, never held back from a warning or outside of the loop."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from bidroute.router import request_log
from bidroute.router.request_log import REQUESTS, JsonLines, RequestLine, log_request, write_logs

LINE = RequestLine(
    request_id="r",
    ticket=1,
    path="/v1/completions",
    outcome="finished",
    status=200,
    worker="a",
    attempts=["a"],
    released_after_s=0.1,
    first_output_after_s=None,
    total_s=0.2,
    prompt_tokens=3,
    output_tokens=4,
)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process writes its logs as the router does."""
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, True)
    logger = logging.getLogger("bidroute")
    before = logger.handlers[:], logger.level, logger.propagate
    write_logs()
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.usefixtures("written")
async def test_lines_of_a_moment_go_out_together(capsys: pytest.CaptureFixture[str]) -> None:
    log_request(LINE)
    REQUESTS.info("another")
    assert capsys.readouterr().err == ""
    await asyncio.sleep(2 * request_log._TOGETHER_S)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["event"], first["request_id"], first["total_s"]) == ("request", "r", 0.2)
    assert second["event"] == "another"
    log_request(LINE)
    logging.getLogger("bidroute.router").warning("at once")
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.usefixtures("written")
def test_outside_of_a_loop_a_line_goes_out_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    REQUESTS.info("starting")
    assert json.loads(capsys.readouterr().err)["event"] == "starting"


@pytest.mark.usefixtures("written")
async def test_both_ways_of_saying_it_make_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_request(LINE)
    logging.getLogger("bidroute").handlers[0].flush()
    written = json.loads(capsys.readouterr().err)
    records: list[logging.LogRecord] = []
    other = logging.Handler()
    other.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("bidroute").handlers[:] = [other]
    log_request(LINE)
    formatted = json.loads(JsonLines().format(records[0]))
    assert list(written) == list(formatted)
    assert {**written, "time": ""} == {**formatted, "time": ""}
