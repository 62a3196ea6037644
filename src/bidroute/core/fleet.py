"""The fleet and its ledger: the router's own account of what runs where.

A lease opens when a policy assigns a request to a device and closes exactly once, whatever happens to the
request. Between the two the host reports what it saw: `start`, `prefilled`, `advance`, `preempt`. Nothing here
reads a clock or a metric; late scrapes can correct the ledger but never drive it.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.leases import DeviceLedger, LeasePool, LeaseState, Status
from bidroute.core.ledger_kernels import FULL, advance_rows, append_row, change_row, count_row, pace, remove_row
from bidroute.core.paces import Paces
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.requests import Request
from bidroute.errors import ConfigError, LedgerError

__all__ = ["DeviceLedger", "Fleet", "Lease", "LeasePool", "LeaseState", "Status"]

PENDING, PREFILLING, DECODING = int(LeaseState.PENDING), int(LeaseState.PREFILLING), int(LeaseState.DECODING)


# Rows of `FleetColumns.totals` that kernels read by name.
OPEN_LEASES, PREFILL_TOKENS, BATCH_SLOTS, KV_TOKENS = 0, 4, 5, 6
BLOCK_SIZE, USABLE_KV_TOKENS, TOKEN_BUDGET = 7, 8, 9
TOTALS = 10


class FleetColumns(NamedTuple):
    """The fleet as kernels read it; valid until its next change.

    `leases` int64[7, rows], `offset` and `counts` int64[G] are those of `LeasePool`; `totals` int64[10, G] and `active`
    int64[A] those of `Fleet`; `moments` float64[ROWS, G] and `prior_s` float64[G] those of `Paces`.
    """

    leases: IntArray
    offset: IntArray
    counts: IntArray
    totals: IntArray
    active: IntArray
    moments: FloatArray
    prior_s: FloatArray


@dataclass(frozen=True, slots=True)
class Lease:
    """A closed lease, as `Fleet.close` hands it back."""

    request_id: int
    device: int
    prompt_tokens: int
    decoded_tokens: int
    length_class: int


class Fleet:
    """All devices with their leases, and per-device totals as arrays of shape [G], read-only to others.

    A device keeps its index for good; one that left stays as a row with status LEFT. Totals, int64[G]:
    `open_leases`; `pending`: leases in state PENDING; `kv_tokens_used`: Σ prompt + decoded + 1 over the leases in
    the batch; `kv_tokens_pending`: the same sum over the pending ones; `prefill_tokens`: Σ prompt + decoded over
    the pending and the prefilling ones; `batch_slots`: B_g; `kv_tokens`: C_g; `block_size`; `usable_kv_tokens`:
    C_g in whole blocks, the largest KV peak that can ever run there; `token_budget`: of one iteration, 0 for none.
    `totals` int64[10, G] holds them in this order, for kernels. float64[G]: `speed`, and `period_s`, the recent mean
    duration of an iteration, one of `paces`. `active` int64[A] are the indexes of the devices that take new requests,
    rising; `members` of all that it is about.
    """

    def __init__(self, devices: list[Device]) -> None:
        if not devices:
            raise ConfigError("the fleet has no devices; expected at least one")
        self.ledgers: list[DeviceLedger] = []
        self.pool = LeasePool()
        self._where: dict[int, int] = {}
        self._position: dict[int, int] = {}
        self.totals: IntArray = np.zeros((TOTALS, 0), dtype=np.int64)
        self.speed: FloatArray = np.zeros(0)
        self.period_s: FloatArray = np.zeros(0)
        self.paces = Paces()
        for device in devices:
            self.join(device)

    def __len__(self) -> int:
        return len(self.ledgers)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._where

    # --- leases -----------------------------------------------------------------------------------------------

    def open(self, request: Request, device: int, length_class: int, exact_tokens: int = 0) -> None:
        """Open a lease in state PENDING. Raises LedgerError when it has one, or the device takes nothing new."""
        if request.id in self._where:
            raise LedgerError(f"request {request.id} has an open lease already; close it first")
        ledger = self._present(device)
        if ledger.status is Status.DRAINING:
            raise LedgerError(f"request {request.id}: device {device} is draining; choose one that is active")
        row = request.id, request.prompt_tokens, length_class, exact_tokens
        pool = self.pool
        place = append_row(pool.columns, pool.offset, pool.count, pool.rooms, self.totals, device, *row)
        if place == FULL:
            pool.grow(device)
            place = append_row(pool.columns, pool.offset, pool.count, pool.rooms, self.totals, device, *row)
        self._where[request.id], self._position[request.id] = device, place

    def start(self, request_id: int, *, prefilled: bool) -> None:
        """The request joined the device's batch; `prefilled` when its prompt is in the KV cache already."""
        device, row, decoded_tokens, state = self._read(request_id)
        if state != PENDING:
            raise LedgerError(f"request {request_id} was started already on device {device}")
        self._change(device, row, decoded_tokens, DECODING if prefilled else PREFILLING)

    def prefilled(self, request_id: int, decoded_tokens: int = 0) -> None:
        """The prompt is processed; `decoded_tokens` output tokens came with it (1 in aggregated engines)."""
        device, row, before_tokens, state = self._read(request_id)
        if state != PREFILLING:
            raise LedgerError(f"request {request_id} is not prefilling on device {device}")
        self._change(device, row, before_tokens + decoded_tokens, DECODING)

    def progress(self, request_id: int, decoded_tokens: int) -> None:
        """The request has produced `decoded_tokens` in all (for hosts that see streams, not periods)."""
        if decoded_tokens < 0:
            raise LedgerError(f"request {request_id}: {decoded_tokens} decoded tokens; expected 0 or more")
        device, row, _, state = self._read(request_id)
        self._change(device, row, decoded_tokens, state)

    def reestimate(self, request_id: int, prompt_tokens: int) -> None:
        """The prompt is now believed to have `prompt_tokens`, for hosts that only estimate it."""
        if prompt_tokens < 0:
            raise LedgerError(f"request {request_id}: {prompt_tokens} prompt tokens; expected 0 or more")
        device, position = self.locate(request_id)
        row = int(self.pool.offset[device]) + position
        count_row(self.pool.columns, self.totals, device, row, -1)
        self.pool.columns[1, row] = prompt_tokens
        count_row(self.pool.columns, self.totals, device, row, 1)

    def advance(self, device: int, periods: int, duration_s: float) -> None:
        """`periods` decode iterations passed on a device in `duration_s`: every decoding lease has as many more."""
        ledger, pool = self._present(device), self.pool
        start = int(pool.offset[device])
        advance_rows(pool.columns, self.totals, device, start, start + ledger.n, periods)
        ledger.periods += periods
        self.paces.observe(device, int(self.open_leases[device]), periods, duration_s)

    def observe_pace(self, device: int, periods: int, duration_s: float) -> None:
        """`periods` iterations of a device took `duration_s` by a mean over some time, for hosts that see no more."""
        self.paces.observe(device, int(self.open_leases[device]), periods, duration_s, sees_iterations=False)

    def preempt(self, request_id: int) -> None:
        """The engine threw the request out of its batch, back into its own queue."""
        device, row, decoded_tokens, state = self._read(request_id)
        if state == PENDING:
            raise LedgerError(f"request {request_id} is not in the batch of device {device}")
        self._change(device, row, decoded_tokens, PENDING)

    def close(self, request_id: int) -> Lease:
        """Close the lease and return it. Raises LedgerError when it is not open (closed once already)."""
        device, position = self.locate(request_id)
        pool = self.pool
        row = remove_row(pool.columns, pool.offset, pool.count, self.totals, device, position)
        prompt_tokens, decoded_tokens, length_class, moved = row
        del self._where[request_id], self._position[request_id]
        if moved != request_id:
            self._position[moved] = position
        return Lease(request_id, device, prompt_tokens, decoded_tokens, length_class)

    def locate(self, request_id: int) -> tuple[int, int]:
        """Device and row of an open lease. Raises LedgerError when none is open."""
        try:
            return self._where[request_id], self._position[request_id]
        except KeyError:
            raise LedgerError(f"request {request_id} has no open lease") from None

    def _read(self, request_id: int) -> tuple[int, int, int, int]:
        """Device of an open lease, its row in the pool, its decoded tokens and its state."""
        device, position = self.locate(request_id)
        row = int(self.pool.offset[device]) + position
        return device, row, int(self.pool.columns[2, row]), int(self.pool.columns[5, row])

    def _change(self, device: int, row: int, decoded_tokens: int, state: int) -> None:
        change_row(self.pool.columns, self.totals, device, row, decoded_tokens, state)

    # --- devices ----------------------------------------------------------------------------------------------

    def join(self, device: Device) -> int:
        """Add a device and return its index."""
        self.pool.add_device()
        self.ledgers.append(DeviceLedger(device, self.pool, len(self.ledgers)))
        self._name_totals(np.concatenate([self.totals, np.zeros((TOTALS, 1), dtype=np.int64)], axis=1))
        self.speed = np.append(self.speed, device.speed)
        self.paces.join(device)
        self.period_s = self.paces.period_s
        self._note_capacity(len(self.ledgers) - 1, device)
        return len(self.ledgers) - 1

    def drain(self, device: int) -> None:
        """Let a device finish what it has and take nothing new. Raises LedgerError when it has left."""
        self._present(device).status = Status.DRAINING
        self._note_devices()

    def resume(self, device: int) -> None:
        """Let a draining device take new requests again. Raises LedgerError when it has left."""
        self._present(device).status = Status.ACTIVE
        self._note_devices()

    def resize(self, device: int, batch_slots: int, kv_tokens: int) -> None:
        """Change a device's capacity; leases that no longer fit run on, and nothing new starts meanwhile."""
        ledger = self._present(device)
        old = ledger.device
        ledger.device = replace(old, batch_slots=batch_slots, kv_tokens=kv_tokens)
        self._note_capacity(device, ledger.device)

    def leave(self, device: int) -> list[Lease]:
        """A device is gone: close all its leases and return them. Raises LedgerError when it has left already."""
        ledger = self._present(device)
        leases = [self.close(int(request_id)) for request_id in ledger.ids.copy()]
        ledger.status = Status.LEFT
        self._note_devices()
        return leases

    def accepting(self) -> list[int]:
        """Indexes of the devices that take new requests, rising."""
        accepting: list[int] = self.active.tolist()
        return accepting

    def columns(self) -> FleetColumns:
        """All arrays at once, for kernels; valid until the next change."""
        pool, paces = self.pool, self.paces
        return FleetColumns(
            pool.columns, pool.offset, pool.count, self.totals, self.active, paces.moments, paces.prior_s
        )

    def pace_s(self, of_s: FloatArray | None = None) -> tuple[float, float]:
        """The shortest and the mean iteration of all devices that take new requests (else of all).

        Or of other times `of_s` float64[G].
        """
        devices = self.active if len(self.active) else np.arange(len(self))
        return pace(self.period_s if of_s is None else of_s, devices)

    @property
    def largest_kv_tokens(self) -> int:
        """The largest KV peak that can run on a device that takes requests; 0 when none does."""
        return self._largest_kv_tokens

    def fits(self, tokens: int) -> bool:
        """Whether a request whose KV peaks at `tokens` could ever run on a device that takes requests."""
        return tokens <= self._largest_kv_tokens

    def frozen(self) -> Fleet:
        """A copy of all arrays as they are now, to be read in another thread; it takes no events."""
        fleet = copy(self)
        fleet.pool = self.pool.frozen()
        fleet.paces, fleet.speed = self.paces.frozen(), self.speed.copy()
        fleet.period_s = fleet.paces.period_s
        fleet._name_totals(self.totals.copy())
        return fleet

    def limited_to(self, devices: IntArray) -> Fleet:
        """This fleet with the same leases, of which only `devices` take requests; `members` are these.

        It goes on sharing all that happens to leases; after a change to devices it is to be taken anew.
        """
        fleet = copy(self)
        fleet.members = devices
        fleet.active = self.active[np.isin(self.active, devices)]
        fleet._largest_kv_tokens = int(self.usable_kv_tokens[fleet.active].max(initial=0))
        return fleet

    def running(self) -> tuple[IntArray, IntArray]:
        """Length class and tokens decoded so far of every open lease, int64[n] each."""
        starts, counts = self.pool.offset.tolist(), self.pool.count.tolist()
        parts = [self.pool.columns[:, start : start + n] for start, n in zip(starts, counts, strict=True)]
        leases = np.concatenate(parts, axis=1)
        return leases[3], leases[2]

    def _name_totals(self, totals: IntArray) -> None:
        self.totals = totals
        self.open_leases, self.pending, self.kv_tokens_used, self.kv_tokens_pending = totals[:4]
        self.prefill_tokens, self.batch_slots, self.kv_tokens = totals[4:7]
        self.block_size, self.usable_kv_tokens, self.token_budget = totals[7:]

    def _present(self, device: int) -> DeviceLedger:
        if not 0 <= device < len(self.ledgers):
            raise LedgerError(f"device {device} is unknown; the fleet has devices 0 to {len(self.ledgers) - 1}")
        if self.ledgers[device].status is Status.LEFT:
            raise LedgerError(f"device {device} has left the fleet; let it join anew")
        return self.ledgers[device]

    def _note_capacity(self, index: int, device: Device) -> None:
        self.batch_slots[index] = device.batch_slots
        self.kv_tokens[index] = device.kv_tokens
        self.block_size[index] = device.block_size
        self.usable_kv_tokens[index] = device.kv_tokens // device.block_size * device.block_size
        self.token_budget[index] = device.token_budget
        self._note_devices()

    def _note_devices(self) -> None:
        active = [index for index, ledger in enumerate(self.ledgers) if ledger.status is Status.ACTIVE]
        self.active: IntArray = np.array(active, dtype=np.int64)
        self.members: IntArray = np.arange(len(self.ledgers))
        self._largest_kv_tokens = int(self.usable_kv_tokens[self.active].max(initial=0))
