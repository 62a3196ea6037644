"""The benchmark itself: every load runs against the plain proxy, and figures are put side by side rightly."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.bench_live.measures import MEASURES, Sizes, Spread, one_round, ratio, spread, warm_up
from tests.bench_live.processes import load, workers
from tests.bench_live.routers import OURS, PLAIN, VLLM, available, router


async def test_every_load_runs(tmp_path: Path) -> None:
    sizes = Sizes(requests=20, seconds=0.2, connections=4, chunks=5)
    async with AsyncExitStack() as stack:
        upstream = await workers(2, 1.0, 4, tmp_path, stack)
        proxy = await router(PLAIN, available(None)[PLAIN], upstream, tmp_path, stack)
        await warm_up(proxy, sizes)
        figures = await one_round(proxy, upstream, sizes)
        waited = await load("waiting", [proxy.url], connections=6, chunks=20, seconds=0.5)
    assert set(figures) == {measure.name for measure in MEASURES}
    assert all(map(math.isfinite, figures.values()))
    assert figures["requests_per_s"] > 0
    assert waited["ended"] > 0
    assert len(waited["gaps_s"]) > 0


async def test_a_client_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="the client failed on"):
        await load("rate", ["http://127.0.0.1:9"], connections=1, seconds=0.1)


def test_routers_that_are_not_installed_are_left_out(tmp_path: Path) -> None:
    assert list(available(tmp_path)) == [OURS, PLAIN]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm-router").touch()
    assert list(available(tmp_path)) == [OURS, PLAIN, VLLM]


def test_medians_and_ratios_are_by_round() -> None:
    mine = [{"requests_per_s": value} for value in (50.0, 60.0, 10.0)]
    other = [{"requests_per_s": value} for value in (100.0, 60.0, 40.0)]
    assert spread(mine, "requests_per_s") == Spread(50, 10, 60)
    rate = next(measure for measure in MEASURES if measure.name == "requests_per_s")
    assert ratio(mine, other, rate) == Spread(2.0, 1.0, 4.0)
