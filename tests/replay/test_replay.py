"""A replay against a worker, over loopback."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from bidroute.errors import ConfigError
from bidroute.experiments.results import Comparison
from bidroute.replay.results import comparison_of, sentence
from bidroute.replay.run import replay
from bidroute.replay.sending import Ending
from bidroute.replay.settings import ReplaySettings
from bidroute.report import comparison_data, comparison_table, write_json, write_per_request_csv
from bidroute.traces import Workload
from tests.worker.live import Live, live

ROWS = [(0.0, 12, 5), (0.0, 40, 9), (0.05, 7, 1), (0.3, 100, 20)]


def workload(rows: list[tuple[float, int, int]]) -> Workload:
    arrival_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    return Workload("rows", arrival_s.astype(float), prompts, outputs)


async def replayed(
    one: Live, rows: list[tuple[float, int, int]], **settings: Any
) -> tuple[Comparison, list[Ending], list[str]]:
    chosen = ReplaySettings(one.url, scrape=(one.url,), **settings)
    run = await replay(chosen, workload(rows), 1.0, 0, lambda *_: None)
    return comparison_of(chosen, [run]), [sent.ending for sent in run.sent], [sent.reason for sent in run.sent]


@pytest.mark.parametrize("chat", [False, True])
async def test_lengths_arrive_as_the_trace_has_them(chat: bool) -> None:
    async with live(latency="affine:0.01,0,0") as one:
        comparison, endings, _ = await replayed(one, ROWS, chat=chat, label="mine")
        counters = one.worker.engine.counters
    assert endings == [Ending.FINISHED] * 4
    assert counters.prompt_tokens == 12 + 40 + 7 + 100
    assert counters.generation_tokens == 5 + 9 + 1 + 20
    (result,) = comparison.results
    assert (result.policy, result.row["refused"], result.row["unfinished"], result.row["short"]) == ("mine", 0, 0, 0)
    assert result.row["prompt_tokens_ratio"] == 1.0
    assert result.row["failures"] == {}
    assert result.requests is not None
    # An idle worker prefills at once, then has a token every 10 ms.
    assert np.all(result.requests.e2e_s >= (np.array([5, 9, 1, 20]) - 1) * 0.01 - 0.002)
    assert result.requests.e2e_s.max() < 0.19 + 0.3
    assert "late" not in " ".join(comparison.notes) or result.row["late_s"]["p99"] > 0.05


async def test_latencies_count_from_the_scheduled_arrival_through_the_queue() -> None:
    async with live(latency="affine:0.02,0,0", batch_slots=1) as one:
        comparison, _, _ = await replayed(one, [(0.0, 4, 11)] * 3)
    (result,) = comparison.results
    assert result.requests is not None
    waits = np.sort(result.requests.ttft_s)
    assert np.allclose(waits, [0.0, 0.2, 0.4], atol=0.1)
    assert any("longest queues inside the workers: " in note for note in comparison.notes)


async def test_preemptions_are_those_of_this_replay() -> None:
    pressed = {"kv_tokens": 64, "block_size": 4, "batch_slots": 4}
    rows = [(0.0, 8, 40)] * 4
    async with live(**pressed) as one:
        first, endings, _ = await replayed(one, rows)
        second, _, _ = await replayed(one, rows)
        total = one.worker.engine.counters.preemptions
    counts = [comparison.results[0].row["preemptions"] for comparison in (first, second)]
    assert endings == [Ending.FINISHED] * 4
    assert min(counts) > 0
    assert sum(counts) == total


async def test_failures_are_counted_and_kept_out_of_the_latencies() -> None:
    async with live(allow_faults=True) as one:
        await one.post("/fault", {"kind": "error", "status": 500, "count": 1})
        comparison, endings, reasons = await replayed(one, [(0.0, 8, 4), (0.1, 8, 4), (0.2, 5000 * 16, 4)])
        await one.post("/fault", {"kind": "drop", "after_tokens": 2})
        _, dropped, _ = await replayed(one, ROWS[:1])
        await one.post("/fault", {"kind": "stream_error", "after_tokens": 2})
        _, broken, why = await replayed(one, ROWS[:1])
        await one.post("/fault", {"kind": "hang"})
        _, hung, _ = await replayed(one, ROWS[:1], timeout_s=0.2)
    assert endings == [Ending.REFUSED, Ending.FINISHED, Ending.REFUSED]
    assert reasons == ["HTTP 500", "", "HTTP 400"]
    assert (dropped, broken, hung) == ([Ending.BROKEN], [Ending.BROKEN], [Ending.TIMEOUT])
    assert why == ["error in the stream"]
    (result,) = comparison.results
    assert (result.row["refused"], result.row["failures"]) == (2, {"HTTP 500": 1, "HTTP 400": 1})
    assert result.requests is not None
    assert np.isnan(result.requests.e2e_s).tolist() == [True, False, True]
    assert any("2 requests failed" in note for note in comparison.notes)


async def test_reports_are_those_of_compare(tmp_path: Path) -> None:
    async with live() as one:
        comparison, _, _ = await replayed(one, ROWS)
    assert comparison_table(comparison).row_count == 1
    assert "4 requests of builtin:azure-conv-like" in sentence(comparison)
    write_json(comparison_data(comparison), tmp_path / "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["results"][0]["e2e_s"].keys() == {"mean", "p50", "p90", "p95", "p99"}
    assert data["results"][0]["workers"][0]["misses"] == 0
    write_per_request_csv(comparison, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [int(row["output_tokens"]) for row in rows] == [5, 9, 1, 20]


async def test_when_nothing_finishes_the_report_still_stands(tmp_path: Path) -> None:
    async with live(allow_faults=True) as one:
        await one.post("/fault", {"kind": "error", "status": 500})
        comparison, _, _ = await replayed(one, ROWS)
    assert comparison_table(comparison).row_count == 1
    write_json(comparison_data(comparison), tmp_path / "out.json")
    assert math.isnan(comparison.results[0].value("e2e_s.mean"))


async def test_the_key_goes_to_the_endpoint_and_not_to_the_workers() -> None:
    seen: dict[str, str | None] = {}

    async def answer(request: web.Request) -> web.Response:
        seen[request.path] = request.headers.get("Authorization")
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path == "/metrics":
            return web.Response(text="")
        return web.Response(body=b'data: {"choices":[{"text":"a"}]}\n\ndata: [DONE]\n\n')

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = ReplaySettings(url, scrape=(url,), api_key="secret")
    run = await replay(settings, workload(ROWS[:1]), 1.0, 0, lambda *_: None)
    await runner.cleanup()
    assert seen == {"/v1/models": "Bearer secret", "/v1/completions": "Bearer secret", "/metrics": None}
    assert run.model == "m"
    assert run.sent[0].ending is Ending.FINISHED
    assert run.sent[0].output_tokens == 1  # no usage: the events are counted


async def test_nobody_at_the_target() -> None:
    with pytest.raises(ConfigError, match="cannot begin against"):
        await replay(ReplaySettings("http://127.0.0.1:1"), workload(ROWS), 1.0, 0, lambda *_: None)
