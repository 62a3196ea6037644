"""What is measured of one router, and what many rounds of it come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.bench_live.processes import Running, load

WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure: `name` in the JSON, and its column's title and digits."""

    name: str
    title: str
    digits: int
    lower_is_better: bool = True


MEASURES = (
    Measure("added_p50_ms", "p50 ms", 2),
    Measure("added_p99_ms", "p99 ms", 2),
    Measure("requests_per_s", "requests/s", 0, lower_is_better=False),
    Measure("cpu_us_per_request", "µs/request", 0),
    Measure("cpu_ms_per_1000_chunks", "ms/1000 chunks", 1),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much load a round is."""

    requests: int
    seconds: float
    connections: int
    chunks: int


async def warm_up(router: Running, sizes: Sizes) -> None:
    """Let it have seen every kind of request; nothing is kept."""
    await load("rate", [router.url], connections=sizes.connections, seconds=WARM_UP_S)
    await load("streams", [router.url], connections=sizes.connections, chunks=20)


async def one_round(router: Running, workers: Sequence[Running], sizes: Sizes) -> dict[str, float]:
    """All figures of one router, by name."""
    direct = [worker.url for worker in workers]
    timed = await load("latency", [router.url], worker=direct, requests=sizes.requests)
    direct_ms, router_ms = (1000.0 * np.percentile(timed[key], (50, 99)) for key in ("direct_s", "router_s"))
    before_s = router.cpu_s()
    rated = await load("rate", [router.url], connections=sizes.connections, seconds=sizes.seconds)
    between_s = router.cpu_s()
    streamed = await load("streams", [router.url], connections=sizes.connections, chunks=sizes.chunks)
    after_s = router.cpu_s()
    return {
        "added_p50_ms": float(router_ms[0] - direct_ms[0]),
        "added_p99_ms": float(router_ms[1] - direct_ms[1]),
        "requests_per_s": rated["requests"] / rated["seconds"],
        "cpu_us_per_request": 1e6 * (between_s - before_s) / rated["requests"],
        "cpu_ms_per_1000_chunks": 1e6 * (after_s - between_s) / streamed["chunks"],
    }


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float


def spread(rounds: Sequence[dict[str, float]], name: str) -> Spread:
    """Median and range of a figure."""
    values = [one[name] for one in rounds]
    return Spread(float(np.median(values)), min(values), max(values))


def ratio(rounds: Sequence[dict[str, float]], others: Sequence[dict[str, float]], measure: Measure) -> Spread:
    """How many times worse than the other router, round by round; below 1 is better."""
    pairs = [(mine[measure.name], other[measure.name]) for mine, other in zip(rounds, others, strict=True)]
    values = [{"": mine / other if measure.lower_is_better else other / mine} for mine, other in pairs]
    return spread(values, "")
