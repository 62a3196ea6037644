"""Gaps between tokens while thousands of requests wait in the router, with price updates on and off."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from tests.bench_live.processes import Running, load, workers
from tests.bench_live.routers import OURS, available, router

WORKERS, GAP_MS, BATCH_SLOTS, CHUNKS = 2, 20.0, 8, 100  # 16 streams of two seconds: eight decisions a second
SECONDS = 15.0
MOST_QUEUED = 20_000

# What is between client and workers, and the router's settings there.
MODES: dict[str, dict[str, Any] | None] = {
    "direct": None,
    "no queue": {},
    "updates never": {"update_s": float("inf")},
    "updates in a thread": {},
    "updates on the loop": {"updates_off_loop": False},
}


async def waiting_rounds(queued: int, rounds: int, console: Console) -> dict[str, list[dict[str, float]]]:
    """Every mode in turn, for several rounds; a fresh router for each."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in MODES}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-live-")))
        upstream = await workers(WORKERS, GAP_MS, BATCH_SLOTS, folder, stack)
        for index in range(rounds):
            for name in MODES:
                figures[name].append(await _one(name, queued, upstream, folder))
                console.print(f"round {index + 1}: {name}", style="dim")
    return figures


async def _one(name: str, queued: int, upstream: list[Running], folder: Path) -> dict[str, float]:
    settings = MODES[name]
    async with AsyncExitStack() as stack:
        if settings is None:
            targets, measured = [worker.url for worker in upstream], None
        else:
            config = folder / "router.yaml"
            known = [{"url": worker.url} for worker in upstream]
            config.write_text(yaml.safe_dump({"max_waiting": MOST_QUEUED, "workers": known, **settings}))
            command = available(None)[OURS]
            measured = await router(OURS, command, [], folder, stack, ["--config", str(config)])
            targets = [measured.url]
        running = WORKERS * BATCH_SLOTS
        connections = running if name in ("direct", "no queue") else running + queued
        before_s = measured.cpu_s() if measured else 0.0
        seen = await load("waiting", targets, connections=connections, chunks=CHUNKS, seconds=SECONDS)
        used_s = measured.cpu_s() - before_s if measured else 0.0
    p50, p99, p999, most = (1000.0 * np.percentile(seen["gaps_s"], (50, 99, 99.9, 100))).tolist()
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "most_ms": most,
        "streams_per_s": seen["ended"] / SECONDS,
        "cpu_share": used_s / SECONDS,
    }
