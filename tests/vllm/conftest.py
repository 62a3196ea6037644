"""Real vLLM engines and a router, started once for the whole suite (see Makefile: test-vllm)."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from bidroute.router.settings import RouterSettings
from bidroute.router.warm_up import compile_kernels
from tests.vllm.processes import (
    CONSUMER,
    KV_LEASE_S,
    LONE_QUEUE,
    PRODUCER,
    SMALL,
    SPECS,
    STALL_S,
    Router,
    VllmWorker,
    warm_up_pair,
)

PYTHON = "BIDROUTE_VLLM_PYTHON"
REPORT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[REPORT]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> list[str]:
    """Lines of figures, shown at the end of the run."""
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that has vllm."""
    path = os.environ.get(PYTHON)
    if not path:
        pytest.fail(f"{PYTHON} is not set; it names the python of an environment with vllm: run make test-vllm")
    return path


@pytest.fixture(scope="session", autouse=True)
def prepared() -> None:
    """Before there are engines: who ends the suite ends them as well, and the router's kernels are compiled, which
    takes minutes where engines need the same few cores."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for policy in ("bid_price", "fifo+safety"):
        compile_kernels(RouterSettings(policy=policy))


@pytest.fixture(scope="session")
def model(folder: Path, python: str) -> Path:
    path = folder / "tiny"
    subprocess.run([python, Path(__file__).with_name("make_model.py"), path], check=True)
    return path


@pytest.fixture(scope="session")
def workers(folder: Path, python: str, model: Path) -> Iterator[list[VllmWorker]]:
    """Three unlike engines: fast, middle, small."""
    with _up([VllmWorker(spec, python, model, folder) for spec in SPECS]) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def pair(folder: Path, python: str, model: Path) -> Iterator[list[VllmWorker]]:
    """An engine that only processes prompts, and one that fetches their KV from it."""
    if subprocess.run([python, "-c", "import nixl"], check=False).returncode:
        pytest.fail(f"no nixl beside vllm; run: {python} -m pip install --no-deps nixl nixl-cu12")
    with _up([VllmWorker(spec, python, model, folder) for spec in (PRODUCER, CONSUMER)]) as fleet:
        warm_up_pair(*fleet)
        yield fleet


@contextmanager
def _up(fleet: list[VllmWorker]) -> Iterator[list[VllmWorker]]:
    try:
        for worker in fleet:
            worker.start()
        for worker in fleet:
            worker.await_start(f"{worker.url}/health")
        for worker in fleet:
            worker.warm_up()
        yield fleet
    finally:
        for worker in fleet:
            worker.stop()


@pytest.fixture(scope="session")
def router(folder: Path, workers: list[VllmWorker]) -> Iterator[Router]:
    """In front of all three, told their URLs, and the slots of the one that keeps them to itself."""
    told = [{"url": worker.url, "name": worker.spec.name} for worker in workers]
    told[-1] |= {"batch_slots": SMALL.slots}  # type: ignore[dict-item]
    yield from _running(Router(folder, "router", workers=told), len(told))


@pytest.fixture
def lone_router(folder: Path, workers: list[VllmWorker]) -> Iterator[Router]:
    """In front of the small engine only, with short limits."""
    small = {"url": workers[-1].url, "name": SMALL.name, "batch_slots": SMALL.slots}
    http = {"stall_timeout_s": STALL_S, "drain_s": 300.0, "trusted_hints": ["x-request-deadline-ms"]}
    yield from _running(Router(folder, "lone", workers=[small], max_waiting=LONE_QUEUE, http=http), 1)


def _running(router: Router, workers: int) -> Iterator[Router]:
    try:
        router.start()
        router.await_ready(workers)
        yield router
    finally:
        router.stop()


@pytest.fixture(scope="module")
def pair_router(folder: Path, pair: list[VllmWorker]) -> Iterator[Router]:
    """In front of both, told which is which."""
    prefill, decode = ([{"url": worker.url, "name": worker.spec.name}] for worker in pair)
    yield from _running(Router(folder, "pair", workers=decode, prefill=prefill, kv_lease_s=KV_LEASE_S), 2)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=600.0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as opened:
        yield opened
