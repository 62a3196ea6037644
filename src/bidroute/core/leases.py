"""Where open leases live: one pool for the whole fleet, so that a kernel can pass over every device in one call."""

from __future__ import annotations

from copy import copy
from enum import IntEnum

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import IntArray

SMALLEST_SEGMENT = 16  # rows a device starts with; segments double from there


class LeaseState(IntEnum):
    """Where a leased request stands on its device."""

    PENDING = 0  # assigned, still in the engine's own queue (or preempted back into it)
    PREFILLING = 1  # in the batch, its prompt not yet processed
    DECODING = 2  # in the batch, one token per period


class Status(IntEnum):
    """Whether a device takes new requests."""

    ACTIVE = 0
    DRAINING = 1  # finishes what it has, takes nothing new
    LEFT = 2  # gone; its leases are closed


class LeasePool:
    """The open leases of all devices, by column; each device has a segment of consecutive rows.

    `columns` int64[7, rows]: request id, prompt tokens, decoded tokens, length class, exact tokens (0: unknown),
    LeaseState, and prompt tokens processed so far (followed on devices with a token budget, while PREFILLING). Device g
    owns rows `offset[g]` to `offset[g] + count[g]`, in no set order, and has room for `rooms[g]`. A segment that runs
    full moves to one twice as long; the old one is kept for the next device that needs its size.
    """

    def __init__(self) -> None:
        self.columns: IntArray = np.zeros((7, SMALLEST_SEGMENT), dtype=np.int64)
        self.offset: IntArray = np.zeros(0, dtype=np.int64)
        self.count: IntArray = np.zeros(0, dtype=np.int64)
        self.rooms: IntArray = np.zeros(0, dtype=np.int64)
        self._free: dict[int, list[int]] = {}
        self._end = 0

    def add_device(self) -> None:
        """Give the next device an empty segment."""
        self.rooms = np.append(self.rooms, SMALLEST_SEGMENT)
        self.offset = np.append(self.offset, self._segment(SMALLEST_SEGMENT))
        self.count = np.append(self.count, 0)

    def frozen(self) -> LeasePool:
        """A copy of the rows as they are now, to be read only."""
        pool = copy(self)
        pool.columns, pool.offset, pool.count = self.columns.copy(), self.offset.copy(), self.count.copy()
        return pool

    def grow(self, device: int) -> None:
        """Give a device room for twice as many rows."""
        room, old = int(self.rooms[device]), int(self.offset[device])
        new = self._segment(2 * room)
        self.columns[:, new : new + room] = self.columns[:, old : old + room]
        self._free.setdefault(room, []).append(old)
        self.offset[device], self.rooms[device] = new, 2 * room

    def _segment(self, room: int) -> int:
        """The first row of a free segment of this many rows."""
        if self._free.get(room):
            return self._free[room].pop()
        start, self._end = self._end, self._end + room
        while self._end > self.columns.shape[1]:
            self.columns = np.concatenate([self.columns, np.zeros_like(self.columns)], axis=1)
        return start


class DeviceLedger:
    """One device, and its open leases by column: views that are valid until the next change to the fleet."""

    def __init__(self, device: Device, pool: LeasePool, index: int) -> None:
        self.device = device
        self.status = Status.ACTIVE
        self.periods = 0
        self._pool = pool
        self._index = index

    @property
    def n(self) -> int:
        """Open leases."""
        return int(self._pool.count[self._index])

    @property
    def ids(self) -> IntArray:
        """Request ids, int64[n]."""
        return self._column(0)

    @property
    def prompt_tokens(self) -> IntArray:
        """Prompt tokens, int64[n]."""
        return self._column(1)

    @property
    def decoded_tokens(self) -> IntArray:
        """Output tokens produced so far, int64[n]."""
        return self._column(2)

    @property
    def length_class(self) -> IntArray:
        """Length class, int64[n]."""
        return self._column(3)

    @property
    def exact_tokens(self) -> IntArray:
        """True output length where known for certain, else 0, int64[n]."""
        return self._column(4)

    @property
    def state(self) -> IntArray:
        """LeaseState values, int64[n]."""
        return self._column(5)

    def _column(self, column: int) -> IntArray:
        start = int(self._pool.offset[self._index])
        return self._pool.columns[column, start : start + self.n]
