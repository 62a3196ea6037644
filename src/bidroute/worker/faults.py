"""Faults on demand: what a test tells the worker to do wrong."""

from __future__ import annotations

import asyncio
import math
from typing import Literal

import msgspec

Kind = Literal["none", "hang", "slow", "error", "drop", "stream_error", "unhealthy"]


class Fault(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The body of `POST /fault`; a new one replaces the one before.

    none          as if nothing had been
    hang          the engine stands still; requests are still accepted
    slow          iterations take `factor` times as long
    error         the next `count` requests (None: all) are answered with `status`
    drop          of the next `count` requests the connection is cut after `after_tokens` tokens
    stream_error  likewise, but the stream ends with an error event
    unhealthy     `/health` answers `status`
    """

    kind: Kind
    factor: float = 4.0
    status: int = 500
    count: int | None = None
    after_tokens: int = 0


class Faults:
    """The fault that is active. `unhung` is set unless the engine hangs; `slowdown` is 1 unless it is slow."""

    def __init__(self) -> None:
        self.active = Fault("none")
        self.unhung = asyncio.Event()
        self.unhung.set()
        self._left = math.inf

    def set(self, fault: Fault) -> None:
        """Make this fault the active one. Raises ValueError for numbers that make no sense."""
        if not (math.isfinite(fault.factor) and fault.factor > 0):
            raise ValueError(f"factor {fault.factor}; expected a positive number")
        if not 400 <= fault.status <= 599:
            raise ValueError(f"status {fault.status}; expected 400 to 599")
        self.active = fault
        self._left = math.inf if fault.count is None else fault.count
        if fault.kind == "hang":
            self.unhung.clear()
        else:
            self.unhung.set()

    @property
    def slowdown(self) -> float:
        """By how much iterations are longer than they should be."""
        return self.active.factor if self.active.kind == "slow" else 1.0

    @property
    def health_status(self) -> int:
        """The HTTP status of `/health`."""
        return self.active.status if self.active.kind == "unhealthy" else 200

    def take(self) -> Fault:
        """What befalls the request that has just come."""
        if self.active.kind not in ("error", "drop", "stream_error") or self._left <= 0:
            return Fault("none")
        self._left -= 1
        return self.active
