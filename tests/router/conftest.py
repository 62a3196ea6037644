"""The tests of the router run on the loop that the router runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bidroute.router.dispatcher import Dispatcher
from bidroute.router.settings import RouterSettings
from tests.router.bench import Bench, Clock
from tests.router.prefill_bench import LEASE_S, Pair

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Bench]]:
    """Builds dispatchers with these settings, each on a clock of its own; they are stopped at the end."""
    made: list[Dispatcher] = []

    def build(**settings: object) -> Bench:
        clock = Clock()
        made.append(Dispatcher(RouterSettings(**{"updates_off_loop": False, **settings}), clock))  # type: ignore[arg-type]
        made[-1].start()
        return Bench(made[-1], clock)

    yield build
    for dispatcher in made:
        dispatcher.stop()


@pytest.fixture
async def pair(make) -> Pair:
    bench = make(kv_lease_s=LEASE_S)
    made = Pair(bench.dispatcher, bench.clock)
    made.worker("a", slots=2)
    made.prefill_worker("p")
    return made
