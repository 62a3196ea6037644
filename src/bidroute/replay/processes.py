"""Child processes of a demo: started, waited for, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp

from bidroute.errors import ConfigError

START_S = 90.0  # a first start on a machine compiles kernels
END_S = 10.0


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def running(
    command: Sequence[str], log: Path, url: str, ready: Callable[[bytes], bool] = lambda _: True
) -> AsyncIterator[None]:
    """Run `command`, its output in `log`, from when GET `url` answers 200 with a body that is `ready` until the end.

    Raises ConfigError, with the end of the log, when it ends or does not get there in time.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        await _wait(process, log, url, ready)
        yield
    finally:
        process.terminate()
        await asyncio.to_thread(_end, process)


async def _wait(process: subprocess.Popen[bytes], log: Path, url: str, ready: Callable[[bytes], bool]) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
        for _ in range(int(START_S / 0.2)):
            if process.poll() is not None:
                break
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url) as response:
                    if response.status == 200 and ready(await response.read()):
                        return
            await asyncio.sleep(0.2)
    words = " ".join(log.read_text(errors="replace").split())
    raise ConfigError(f"{url} does not answer; it said: {words[-300:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
