"""The routers that are compared: how each one is started in front of the workers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bidroute.replay.processes import free_port
from tests.bench_live.processes import ROOM, Running, started

OURS, PLAIN, VLLM, SGLANG = "bidroute", "plain aiohttp", "vllm-router", "sglang-router"


def available(routers_venv: Path | None) -> dict[str, list[str]]:
    """Name → beginning of the command, for every router that is installed."""
    python = sys.executable
    commands = {OURS: [python, "-m", "bidroute", "serve"], PLAIN: [python, "-m", f"{ROOM}.plain_proxy"]}
    folder = Path(python).parent if routers_venv is None else routers_venv / "bin"
    if (folder / "vllm-router").exists():
        commands[VLLM] = [str(folder / "python"), "-m", "vllm_router.launch_router"]
    if (folder / "sglang-router").exists():
        commands[SGLANG] = [str(folder / "sglang-router"), "launch"]
    return commands


async def router(
    name: str,
    command: Sequence[str],
    workers: Sequence[Running],
    folder: Path,
    stack: AsyncExitStack,
    options: Sequence[str] = (),
) -> Running:
    """Start it with its default settings in front of these workers."""
    port = free_port()
    urls = [worker.url for worker in workers]
    words = [*command, "--port", str(port), *options]
    if name in (OURS, PLAIN):
        words += [word for url in urls for word in ("--worker", url)]
    else:
        metrics = "--prometheus-port", str(free_port())
        words += ["--host", "127.0.0.1", *metrics, "--policy", "round_robin", "--worker-urls", *urls]
    return await started(name, words, port, "/v1/models", folder, stack)
