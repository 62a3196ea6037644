"""Gaps between tokens while thousands of requests wait in the router, with price updates on and off."""

from __future__ import annotations

import asyncio
import re
import tempfile
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from tests.bench_live.processes import Running, load, workers
from tests.bench_live.routers import OURS, available, router

WORKERS, GAP_MS, BATCH_SLOTS, CHUNKS = 2, 20.0, 8, 100  # 16 streams of two seconds: eight decisions a second
RUNNING = WORKERS * BATCH_SLOTS
SECONDS = 15.0
FIGURES = {
    "p50_ms": "p50",
    "p99_ms": "p99",
    "p999_ms": "p99.9",
    "most_ms": "most",
    "streams_per_s": "streams/s",
    "decision_ms": "decision ms",
}
MOST_QUEUED = 20_000

# What is between client and workers, and the router's settings there.
MODES: dict[str, dict[str, Any] | None] = {
    "direct": None,
    "no queue": {},
    "updates never": {"update_s": float("inf")},
    "updates in a thread": {},
    "updates on the loop": {"updates_off_loop": False},
}
SHORT = ("direct", "no queue")  # modes in which nobody waits


async def waiting_rounds(queued: int, rounds: int, console: Console) -> dict[str, list[dict[str, float]]]:
    """Every mode in turn, for several rounds; a fresh router for each."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in MODES}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-live-")))
        upstream = await workers(WORKERS, GAP_MS, BATCH_SLOTS, folder, stack)
        for index in range(rounds):
            for name in MODES:
                measured = await _one(name, queued, upstream, folder)
                figures[name].append(measured)
                told = ", ".join(f"{measured[figure]:.1f} {title}" for figure, title in FIGURES.items())
                console.print(f"{index + 1} {name}: {told}", style="dim", soft_wrap=True)
    return figures


async def _one(name: str, queued: int, upstream: list[Running], folder: Path) -> dict[str, float]:
    settings = MODES[name]
    connections = RUNNING if name in SHORT else RUNNING + queued
    options = {"connections": connections, "chunks": CHUNKS, "seconds": SECONDS}
    if settings is None:
        seen = await load("waiting", [worker.url for worker in upstream], **options)
        return _figures(seen, 0.0)
    config = folder / "router.yaml"
    known = [{"url": worker.url} for worker in upstream]
    config.write_text(yaml.safe_dump({"max_waiting": MOST_QUEUED, "workers": known, **settings}))
    async with AsyncExitStack() as stack:
        started = await router(OURS, available(None)[OURS], [], folder, stack, ["--config", str(config)])
        seen = await load("waiting", [started.url], **options)
        return _figures(seen, await asyncio.to_thread(_mean_decision_ms, started.url))


def _figures(seen: dict[str, Any], decision_ms: float) -> dict[str, float]:
    p50, p99, p999, most = (1000.0 * np.percentile(seen["gaps_s"], (50, 99, 99.9, 100))).tolist()
    per_s = seen["ended"] / SECONDS
    figures = (p50, p99, p999, most, per_s, decision_ms)
    return dict(zip(FIGURES, figures, strict=True))


def _mean_decision_ms(url: str) -> float:
    """The mean time of a decision, by the router's own metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        page = answer.read().decode()
    total_s, count = (re.search(rf"^bidroute_decision_seconds_{kind} (\S+)$", page, re.M) for kind in ("sum", "count"))
    assert total_s is not None
    assert count is not None
    return 1000.0 * float(total_s[1]) / max(float(count[1]), 1.0)
