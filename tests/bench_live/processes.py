"""The processes of a benchmark: workers, routers, clients; and the CPU that one has used, with its children."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bidroute.replay.processes import Child, free_port

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ROOM = "tests.bench_live"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers at `url`."""

    name: str
    url: str
    child: Child

    def cpu_s(self) -> float:
        """CPU seconds used so far, by all threads and children."""
        return sum(map(_cpu_s, _family(self.child.pid)))


async def started(
    name: str, command: Sequence[str], port: int, health: str, folder: Path, stack: AsyncExitStack
) -> Running:
    """Start a server, wait until it answers, and end it with the stack. Raises ConfigError where it does not."""
    child = Child(command, folder / f"{name.replace('/', '-')}-{port}.log")
    stack.push_async_callback(child.end)
    running = Running(name, f"http://127.0.0.1:{port}", child)
    await child.answers(running.url + health)
    return running


async def workers(count: int, gap_ms: float, batch_slots: int, folder: Path, stack: AsyncExitStack) -> list[Running]:
    """Workers that answer at once."""
    running = []
    for index in range(count):
        port = free_port()
        options = ("--port", str(port), "--gap-ms", str(gap_ms), "--batch-slots", str(batch_slots))
        command = (sys.executable, "-m", f"{ROOM}.upstream", *options)
        running.append(await started(f"worker-{index}", command, port, "/health", folder, stack))
    return running


async def load(kind: str, targets: Sequence[str], **options: object) -> dict[str, Any]:
    """Run the client once; what it measured. Raises RuntimeError with its last words where it failed."""
    command = [sys.executable, "-m", f"{ROOM}.client", kind]
    for target in targets:
        command += ["--target", target]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            command += [f"--{name}", str(one)]
    pipe = asyncio.subprocess.PIPE
    client = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        output, words = await client.communicate()
    finally:
        if client.returncode is None:
            client.kill()
    if client.returncode:
        raise RuntimeError(f"the client failed on {', '.join(targets)}: {words.decode()[-600:]}")
    figures: dict[str, Any] = json.loads(output)
    return figures


def _family(pid: int) -> list[int]:
    children = [
        int(child) for listing in Path(f"/proc/{pid}/task").glob("*/children") for child in listing.read_text().split()
    ]
    return [pid, *(one for child in children for one in _family(child))]


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) / _TICKS_PER_S
