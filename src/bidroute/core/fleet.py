"""The fleet and its ledger: the router's own account of what runs where.

A lease opens when a policy assigns a request to a device and closes exactly once, whatever happens to the
request. Between the two the host reports what it saw: `start`, `prefilled`, `advance`, `preempt`. Nothing here
reads a clock or a metric; late scrapes can correct the ledger but never drive it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.requests import Request
from bidroute.errors import ConfigError, LedgerError

PERIOD_SMOOTHING = 0.1  # weight of the newest iteration time in a device's running mean


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


@dataclass(frozen=True, slots=True)
class Lease:
    """A closed lease, as `Fleet.close` hands it back."""

    request_id: int
    device: int
    prompt_tokens: int
    decoded_tokens: int
    length_class: int


class DeviceLedger:
    """The open leases of one device, by column; views of the first `n` rows, in no set order."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.status = Status.ACTIVE
        self.n = 0
        self.periods = 0
        self.period_s = device.period_s
        self._columns = np.zeros((6, 16), dtype=np.int64)

    @property
    def ids(self) -> IntArray:
        """Request ids, int64[n]."""
        return self._columns[0, : self.n]

    @property
    def prompt_tokens(self) -> IntArray:
        """Prompt tokens, int64[n]."""
        return self._columns[1, : self.n]

    @property
    def decoded_tokens(self) -> IntArray:
        """Output tokens produced so far, int64[n]."""
        return self._columns[2, : self.n]

    @property
    def length_class(self) -> IntArray:
        """Length class, int64[n]."""
        return self._columns[3, : self.n]

    @property
    def exact_tokens(self) -> IntArray:
        """True output length where known for certain, else 0, int64[n]."""
        return self._columns[4, : self.n]

    @property
    def state(self) -> IntArray:
        """LeaseState values, int64[n]."""
        return self._columns[5, : self.n]

    def append(self, request: Request, length_class: int, exact_tokens: int) -> int:
        """Add a row in state PENDING and return its position."""
        if self.n == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._columns[:, self.n] = (
            request.id,
            request.prompt_tokens,
            0,
            length_class,
            exact_tokens,
            LeaseState.PENDING,
        )
        self.n += 1
        return self.n - 1

    def remove(self, position: int) -> int | None:
        """Drop a row; return the id of the row that moved into its place, if one did."""
        self.n -= 1
        if position == self.n:
            return None
        self._columns[:, position] = self._columns[:, self.n]
        return int(self._columns[0, position])


class Fleet:
    """All devices with their leases, and per-device totals as arrays of shape [G].

    `open_leases`, `pending` (leases in state PENDING), `kv_tokens_used` (Σ prompt + decoded + 1 over the leases
    in the batch), `batch_slots`, `kv_tokens`, `speed`. A device keeps its index for good; one that left stays
    as a row with status LEFT.
    """

    def __init__(self, devices: list[Device]) -> None:
        if not devices:
            raise ConfigError("the fleet has no devices; expected at least one")
        self.ledgers: list[DeviceLedger] = []
        self._where: dict[int, tuple[int, int]] = {}
        self._totals = np.zeros((5, 0), dtype=np.int64)
        self.speed: FloatArray = np.zeros(0)
        for device in devices:
            self.join(device)

    def __len__(self) -> int:
        return len(self.ledgers)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._where

    @property
    def open_leases(self) -> IntArray:
        """Open leases per device, int64[G]."""
        return self._totals[0, :]

    @property
    def pending(self) -> IntArray:
        """Leases that wait inside the engine, int64[G]."""
        return self._totals[1, :]

    @property
    def kv_tokens_used(self) -> IntArray:
        """KV tokens held by the leases in the batch, int64[G]."""
        return self._totals[2, :]

    @property
    def batch_slots(self) -> IntArray:
        """B_g, int64[G]."""
        return self._totals[3, :]

    @property
    def kv_tokens(self) -> IntArray:
        """C_g in tokens, int64[G]."""
        return self._totals[4, :]

    # --- leases -----------------------------------------------------------------------------------------------

    def open(self, request: Request, device: int, length_class: int, exact_tokens: int = 0) -> None:
        """Open a lease in state PENDING. Raises LedgerError when the request has one already."""
        if request.id in self._where:
            raise LedgerError(f"request {request.id} has an open lease already; close it first")
        if self.ledgers[device].status is Status.LEFT:
            raise LedgerError(f"request {request.id}: device {device} has left the fleet")
        position = self.ledgers[device].append(request, length_class, exact_tokens)
        self._where[request.id] = (device, position)
        self.open_leases[device] += 1
        self.pending[device] += 1

    def start(self, request_id: int, *, prefilled: bool) -> None:
        """The request joined the device's batch; `prefilled` when its prompt is in the KV cache already."""
        device, position = self.locate(request_id)
        ledger = self.ledgers[device]
        if ledger.state[position] != LeaseState.PENDING:
            raise LedgerError(f"request {request_id} was started already on device {device}")
        ledger.state[position] = LeaseState.DECODING if prefilled else LeaseState.PREFILLING
        self.pending[device] -= 1
        self.kv_tokens_used[device] += _held_tokens(ledger, position)

    def prefilled(self, request_id: int, decoded_tokens: int = 0) -> None:
        """The prompt is processed; `decoded_tokens` output tokens came with it (1 in aggregated engines)."""
        device, position = self.locate(request_id)
        ledger = self.ledgers[device]
        if ledger.state[position] != LeaseState.PREFILLING:
            raise LedgerError(f"request {request_id} is not prefilling on device {device}")
        ledger.state[position] = LeaseState.DECODING
        ledger.decoded_tokens[position] += decoded_tokens
        self.kv_tokens_used[device] += decoded_tokens

    def progress(self, request_id: int, decoded_tokens: int) -> None:
        """The request has produced `decoded_tokens` in all (for hosts that see streams, not periods)."""
        device, position = self.locate(request_id)
        ledger = self.ledgers[device]
        if ledger.state[position] != LeaseState.PENDING:
            self.kv_tokens_used[device] += decoded_tokens - ledger.decoded_tokens[position]
        ledger.decoded_tokens[position] = decoded_tokens

    def advance(self, device: int, periods: int, duration_s: float) -> None:
        """`periods` decode iterations passed on a device in `duration_s`: every decoding lease has as many more."""
        ledger = self.ledgers[device]
        decoding = ledger.state == LeaseState.DECODING
        ledger.decoded_tokens[decoding] += periods
        self.kv_tokens_used[device] += periods * int(np.count_nonzero(decoding))
        ledger.periods += periods
        if periods > 0 and duration_s > 0:
            keep = (1.0 - PERIOD_SMOOTHING) ** periods
            ledger.period_s = keep * ledger.period_s + (1.0 - keep) * duration_s / periods

    def preempt(self, request_id: int) -> None:
        """The engine threw the request out of its batch, back into its own queue."""
        device, position = self.locate(request_id)
        ledger = self.ledgers[device]
        if ledger.state[position] == LeaseState.PENDING:
            raise LedgerError(f"request {request_id} is not in the batch of device {device}")
        self.kv_tokens_used[device] -= _held_tokens(ledger, position)
        ledger.state[position] = LeaseState.PENDING
        self.pending[device] += 1

    def close(self, request_id: int) -> Lease:
        """Close the lease and return it. Raises LedgerError when it is not open (closed once already)."""
        device, position = self.locate(request_id)
        ledger = self.ledgers[device]
        if ledger.state[position] == LeaseState.PENDING:
            self.pending[device] -= 1
        else:
            self.kv_tokens_used[device] -= _held_tokens(ledger, position)
        self.open_leases[device] -= 1
        lease = Lease(
            request_id,
            device,
            int(ledger.prompt_tokens[position]),
            int(ledger.decoded_tokens[position]),
            int(ledger.length_class[position]),
        )
        del self._where[request_id]
        moved = ledger.remove(position)
        if moved is not None:
            self._where[moved] = (device, position)
        return lease

    def locate(self, request_id: int) -> tuple[int, int]:
        """Device and row of an open lease. Raises LedgerError when none is open."""
        try:
            return self._where[request_id]
        except KeyError:
            raise LedgerError(f"request {request_id} has no open lease") from None

    # --- devices ----------------------------------------------------------------------------------------------

    def join(self, device: Device) -> int:
        """Add a device and return its index."""
        self.ledgers.append(DeviceLedger(device))
        column = np.array([[0], [0], [0], [device.batch_slots], [device.kv_tokens]], dtype=np.int64)
        self._totals = np.concatenate([self._totals, column], axis=1)
        self.speed = np.append(self.speed, device.speed)
        return len(self.ledgers) - 1

    def drain(self, device: int) -> None:
        """Let a device finish what it has and take nothing new."""
        self.ledgers[device].status = Status.DRAINING

    def resize(self, device: int, batch_slots: int, kv_tokens: int) -> None:
        """Change a device's capacity; leases that no longer fit run on, and nothing new starts meanwhile."""
        old = self.ledgers[device].device
        new = Device(old.name, batch_slots, kv_tokens, old.block_size, old.period_s, old.speed)
        self.ledgers[device].device = new
        self.batch_slots[device] = batch_slots
        self.kv_tokens[device] = kv_tokens

    def leave(self, device: int) -> list[Lease]:
        """A device is gone: close all its leases and return them."""
        leases = [self.close(int(request_id)) for request_id in self.ledgers[device].ids.copy()]
        self.ledgers[device].status = Status.LEFT
        return leases

    def accepting(self) -> list[int]:
        """Indexes of the devices that take new requests."""
        return [index for index, ledger in enumerate(self.ledgers) if ledger.status is Status.ACTIVE]

    def fits(self, tokens: int) -> bool:
        """Whether a request whose KV peaks at `tokens` could ever run on a device that takes requests."""
        return any(ledger.device.fits(tokens) for ledger in self.ledgers if ledger.status is Status.ACTIVE)


def _held_tokens(ledger: DeviceLedger, position: int) -> int:
    """m_j(θ) of design §1: prompt + decoded + 1."""
    return int(ledger.prompt_tokens[position] + ledger.decoded_tokens[position]) + 1
