"""Child processes of a demo: started, waited for, and always ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import aiohttp

from bidroute.errors import ConfigError

START_S = 90.0  # a first start on a machine compiles kernels
END_S = 10.0
LOOK_S = 0.2
LAST_WORDS = 300
FIRST_PORT, PROCESSES, PORTS_EACH = 12_000, 200, 100  # below the ports that systems hand out to clients


def free_port() -> int:
    """A port of the loopback that nobody listens on, and that no client nor another such process takes meanwhile.

    Raises ConfigError when there is none.
    """
    for port in itertools.islice(_ports(), PORTS_EACH):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigError(f"none of {PORTS_EACH} ports of the loopback is free; end what listens there")


@cache
def _ports() -> Iterator[int]:
    """This process's own, in turn."""
    first = FIRST_PORT + os.getpid() % PROCESSES * PORTS_EACH
    return itertools.cycle(range(first, first + PORTS_EACH))


class Child:
    """A running command, its output in the file `log`. `end` it whatever happens."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def answers(self, url: str, ready: Callable[[bytes], bool] = lambda _: True) -> None:
        """Return when GET `url` answers 200 with a body that is `ready`.

        Raises ConfigError, with the end of the log, when the command ends or does not get there in time.
        """
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
            for _ in range(int(START_S / LOOK_S)):
                if self._process.poll() is not None:
                    break
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(url) as response:
                        if response.status == 200 and ready(await response.read()):
                            return
                await asyncio.sleep(LOOK_S)
        words = " ".join(self._log.read_text(errors="replace").split())
        raise ConfigError(f"{url} does not answer; what was started there said: {words[-LAST_WORDS:]}")

    async def end(self) -> None:
        """Ask the command to end, and make it."""
        self._process.terminate()
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
