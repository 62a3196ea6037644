"""The tests of the router run on the loop that the router runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
