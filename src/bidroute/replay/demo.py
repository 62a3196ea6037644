"""The live demo: three unlike workers, the router in front, the same burst of requests under several policies."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop
import yaml

from bidroute.errors import ConfigError
from bidroute.experiments.results import Comparison
from bidroute.replay.processes import Child, free_port
from bidroute.replay.results import comparison_of
from bidroute.replay.run import Progress, replay
from bidroute.replay.settings import ReplaySettings
from bidroute.traces import Workload, load_trace
from bidroute.traces.arrivals import bursty_arrivals

COMMAND = (sys.executable, "-m", "bidroute")
MODEL = "demo"
RATE_PER_S = 4.5  # in the workers' own time; about 0.85 of what they can do
BURSTINESS = 1.0
EPISODE_S = 8.0
TIMEOUT_S = 180.0  # more than any policy needs: a rotation takes 60
MOST_PROMPT_TOKENS = 3000
MOST_OUTPUT_TOKENS = 800
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoWorker:
    """One worker of the fleet: slots, KV tokens, and seconds per iteration and per prefill as latency models."""

    name: str
    batch_slots: int
    kv_tokens: int
    latency: str
    prefill: str


FLEET = (
    DemoWorker("large", 32, 24_000, "affine:0.015,0.0003,0.0000003", "affine:0,0.00002"),
    DemoWorker("medium", 16, 10_000, "affine:0.025,0.0005,0.0000006", "affine:0,0.00004"),
    DemoWorker("small", 8, 6_000, "affine:0.040,0.001,0.000001", "affine:0,0.00008"),
)


@dataclass(frozen=True, slots=True)
class Demo:
    """What to show. `time_scale` runs workers and arrivals so many times faster than real; `router` is the command
    that is given `--port N --config FILE`."""

    policies: tuple[str, ...] = ("bid_price", "round_robin")
    requests: int = 200
    time_scale: float = 2.0
    seed: int = 0
    router: tuple[str, ...] = (*COMMAND, "serve")

    def __post_init__(self) -> None:
        if self.requests < 2 or not 0 < self.time_scale <= 20 or not self.policies:
            raise ConfigError("the demo needs 2 requests or more, a time scale of at most 20, and a policy")


def demo_workload(demo: Demo) -> Workload:
    """Lengths of chat traffic, within what every worker can hold; arrivals in bursts, in wall time."""
    chat = load_trace("builtin:azure-conv-like", requests=demo.requests, seed=demo.seed)
    random = np.random.default_rng(demo.seed)
    arrival_s = bursty_arrivals(demo.requests, RATE_PER_S, BURSTINESS, EPISODE_S, random) / demo.time_scale
    prompts = np.minimum(chat.prompt_tokens, MOST_PROMPT_TOKENS)
    outputs = np.minimum(chat.output_tokens, MOST_OUTPUT_TOKENS)
    return Workload("bursty chat", arrival_s, prompts, outputs)


def run_demo(demo: Demo, say: Say, on_progress: Progress) -> Comparison:
    """Start everything, replay under each policy, stop everything; one row per policy. Raises ConfigError."""
    return uvloop.run(_run(demo, say, on_progress))


async def _run(demo: Demo, say: Say, on_progress: Progress) -> Comparison:
    workload = demo_workload(demo)
    results = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bidroute-demo-") as place:
        folder = Path(place)
        for policy in demo.policies:
            one = await _run_policy(demo, policy, workload, folder, say, on_progress)
            results += one.results
            notes += [f"{policy}, {note}" for note in one.notes]
    return Comparison({**one.scenario, "policies": list(demo.policies)}, results, notes)


async def _run_policy(
    demo: Demo, policy: str, workload: Workload, folder: Path, say: Say, on_progress: Progress
) -> Comparison:
    """Fresh workers and a fresh router for every policy: none profits from what another has warmed up."""
    ports = [free_port() for _ in range(len(FLEET) + 1)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    *workers, router = urls
    config = folder / f"{policy}.yaml"
    config.write_text(yaml.safe_dump(router_config(policy, workers)), encoding="utf-8")
    children = []
    try:
        for worker, port in zip(FLEET, ports, strict=False):
            children.append(Child(worker_command(worker, port, demo.time_scale), folder / f"{worker.name}.log"))
        await asyncio.gather(*(child.answers(f"{url}/health") for child, url in zip(children, workers, strict=True)))
        children.append(Child([*demo.router, "--port", str(ports[-1]), "--config", str(config)], folder / "router.log"))
        await children[-1].answers(f"{router}/v1/models", _lists_a_model)
        say(f"{policy}: router at {router}, workers at {', '.join(workers)}")
        settings = ReplaySettings(router, MODEL, policy, "bursty chat", timeout_s=TIMEOUT_S, scrape=tuple(workers))
        replayed = await replay(settings, workload, demo.time_scale, demo.seed, on_progress)
    finally:
        await asyncio.gather(*(child.end() for child in children))
    return comparison_of(settings, [replayed])


def worker_command(worker: DemoWorker, port: int, time_scale: float) -> list[str]:
    """The command line of one worker."""
    options = {
        "--port": port,
        "--model": MODEL,
        "--batch-slots": worker.batch_slots,
        "--kv-tokens": worker.kv_tokens,
        "--latency": worker.latency,
        "--prefill": worker.prefill,
        "--time-scale": time_scale,
    }
    return [*COMMAND, "worker", *(str(part) for pair in options.items() for part in pair)]


def router_config(policy: str, workers: Sequence[str]) -> dict[str, object]:
    """What the router is told: the policy, and of each worker its address and its slots."""
    known = [
        {"url": url, "name": worker.name, "batch_slots": worker.batch_slots}
        for worker, url in zip(FLEET, workers, strict=True)
    ]
    return {"policy": policy, "workers": known}


def _lists_a_model(body: bytes) -> bool:
    try:
        return bool(json.loads(body)["data"])
    except (ValueError, LookupError, TypeError):
        return False
