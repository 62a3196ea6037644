"""The engines of a cluster: the arrays, and typed methods over the kernels that work on them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray, IntArray
from bidroute.simulator import fleet_kernels, layout
from bidroute.simulator.latency import DecodeLatency, PrefillLatency
from bidroute.simulator.scenario import Scenario

NS_PER_S = 1e9
PS_PER_S = 1e12
MIN_LOG_ROWS = 4096
_MODES = {"decode": layout.MODE_DECODE, "aggregated": layout.MODE_AGGREGATED, "disaggregated": layout.MODE_DECODE}


class Engines:
    """Rows 0 … G−1 are the devices of the fleet, rows G … G+P−1 the prefill workers.

    `requests` int64[n, R_COLUMNS], `devices` int64[G+P, D_COLUMNS], `log` int64[L, L_COLUMNS]: see `layout`.
    `on_full_log` is called when the log must be emptied (with `clear_log`) before a kernel can go on.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.fleet_size = len(scenario.devices)
        self.rows = self.fleet_size + scenario.prefill_workers
        self.requests = _request_rows(scenario)
        self.devices = _device_rows(scenario)
        self.models = _pack_models(scenario, self.devices)
        slots = int(self.devices[:, layout.D_SLOTS].max())
        self.batch = np.zeros((self.rows, slots, layout.B_COLUMNS), dtype=np.int64)
        self.growth = np.zeros((self.rows, int(self.devices[:, layout.D_BLOCK_SIZE].max())), dtype=np.int64)
        self.log = np.zeros((1 + max(MIN_LOG_ROWS, 8 * slots), layout.L_COLUMNS), dtype=np.int64)
        self.on_full_log: Callable[[], None] = self.clear_log
        self._ready = np.zeros(self.fleet_size, dtype=np.int64)
        self.total_blocks: IntArray = self.devices[:, layout.D_FREE].copy()

    # --- time -------------------------------------------------------------------------------------------------

    def advance(self, until_ns: int, first: int = 0, last: int | None = None) -> None:
        """Complete passes that end by `until_ns`; devices also start those that begin before it."""
        last, at = self.rows if last is None else last, first
        while True:
            at = fleet_kernels.advance_all(
                self.requests, self.devices, self.batch, self.growth, self.models, self.log, at, last, until_ns
            )
            if at == last:
                return
            self.on_full_log()

    def open(self, now_ns: int, first: int, last: int) -> None:
        """Open a pass on every row of the range that stands at a boundary."""
        at = first
        while True:
            at = fleet_kernels.open_all(
                self.requests, self.devices, self.batch, self.growth, self.log, at, last, now_ns
            )
            if at == last:
                return
            self.on_full_log()

    def launch(self, first: int, last: int) -> None:
        """Start every open pass of the range."""
        at = first
        while True:
            at = fleet_kernels.launch_all(
                self.requests, self.devices, self.batch, self.growth, self.models, self.log, at, last
            )
            if at == last:
                return
            self.on_full_log()

    def ready(self) -> list[int]:
        """Devices with an open pass that a request could join now."""
        count = fleet_kernels.mark_ready(self.devices, self._ready)
        devices: list[int] = self._ready[:count].tolist()
        return devices

    def next_stop_ns(self) -> int:
        """When a device next has something to decide (room at a boundary, a finish, an eviction); FOREVER if never."""
        return fleet_kernels.earliest_stop(self.requests, self.devices, self.growth, self.models, 0, self.fleet_size)

    def next_prefill_end_ns(self) -> int:
        """When a prefill worker's pass next ends; FOREVER if none runs."""
        return fleet_kernels.earliest_end(self.devices, self.fleet_size, self.rows)

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits in an engine."""
        return bool(self.devices[:, [layout.D_RUNNING, layout.D_QUEUED]].any())

    # --- devices that come and go -----------------------------------------------------------------------------

    def shut(self, device: int) -> None:
        """Take a device out: with no slots it is never ready, and it runs nothing."""
        self.devices[device, layout.D_SLOTS] = 0

    def join(self, device: int, batch_slots: int, now_ns: int) -> None:
        """A device that was shut stands at a boundary now, empty."""
        self.devices[device, [layout.D_SLOTS, layout.D_CLOCK]] = batch_slots, now_ns

    def lose(self, device: int, now_ns: int) -> list[int]:
        """Shut a device, wherever in a pass it is, and return the requests it held, as if they had never begun."""
        row = self.devices[device]
        lost = self._batch_of(device) + self._queue_of(device)
        row[layout.D_WASTED] += self._computed_tokens(device)
        fresh = [layout.R_GENERATED, layout.R_COMPUTED]
        never = [layout.R_START, layout.R_FIRST]
        self.requests[np.ix_(lost, fresh)], self.requests[np.ix_(lost, never)] = 0, layout.NEVER
        row[[layout.D_RUNNING, layout.D_PREFILLING, layout.D_CONTEXT, layout.D_QUEUED]] = 0
        row[[layout.D_HEAD, layout.D_TAIL, layout.D_BLOCKED]] = layout.NOBODY
        row[[layout.D_FREE, layout.D_UNRESERVED]] = self.total_blocks[device]
        row[layout.D_STATE], row[layout.D_CLOCK] = layout.BOUNDARY, now_ns
        row[layout.D_NEXT_FINISH], row[layout.D_STOP] = layout.FOREVER, layout.NEVER
        self.growth[device] = 0
        self.shut(device)
        return lost

    def _batch_of(self, device: int) -> list[int]:
        ids: list[int] = self.batch[device, : self.devices[device, layout.D_RUNNING], layout.B_ID].tolist()
        return ids

    def _queue_of(self, device: int) -> list[int]:
        queue, request = [], int(self.devices[device, layout.D_HEAD])
        while request != layout.NOBODY:
            queue.append(request)
            request = int(self.requests[request, layout.R_NEXT])
        return queue

    def _computed_tokens(self, device: int) -> int:
        """Prompt and output tokens that the batch of a device has been through so far."""
        row, ids = self.devices[device], self._batch_of(device)
        decoding = int(row[layout.D_RUNNING] - row[layout.D_PREFILLING])
        prefilled = self.requests[ids[decoding:], layout.R_COMPUTED].sum()
        return int(row[layout.D_CONTEXT] + prefilled)

    # --- requests ---------------------------------------------------------------------------------------------

    def push(self, row: int, request: int, now_ns: int) -> None:
        """A request enters the row's own queue."""
        fleet_kernels.push(self.requests, self.devices, row, request, now_ns)

    def release_prompt(self, row: int, request: int) -> None:
        """The decode side has taken the prompt's KV from this prefill worker."""
        fleet_kernels.release_prompt(self.requests, self.devices, row, request)

    def link(self, device: int, requests: IntArray) -> None:
        """Make the queue of a device out of all the requests it will get, in order of their R_READY."""
        if len(requests) == 0:
            return
        self.requests[requests[:-1], layout.R_NEXT] = requests[1:]
        self.devices[device, layout.D_HEAD] = requests[0]
        self.devices[device, layout.D_TAIL] = requests[-1]
        self.devices[device, layout.D_QUEUED] = len(requests)

    def can_complete(self) -> np.ndarray:
        """Which requests could run to their end alone on which device, bool[n, G].

        All their tokens count, as they do in the ledger, although an aggregated engine frees the KV of a request
        just before its last token would need some.
        """
        peak = self.requests[:, layout.R_PROMPT] + np.maximum(self.requests[:, layout.R_OUTPUT], 1)
        fits = np.zeros((len(self.requests), self.fleet_size), dtype=np.bool_)
        alike: dict[tuple[int, int], int] = {}
        for d, row in enumerate(self.devices[: self.fleet_size]):
            block_size = int(row[layout.D_BLOCK_SIZE])
            like = alike.setdefault((block_size, int(self.total_blocks[d])), d)
            if like < d:
                fits[:, d] = fits[:, like]
                continue
            fits[:, d] = peak <= int(self.total_blocks[d]) * block_size
        return fits

    # --- the log ----------------------------------------------------------------------------------------------

    def logged(self) -> IntArray:
        """The entries logged since the last `clear_log`, in order of time; int64[k, L_COLUMNS], a copy."""
        entries = self.log[1 : 1 + int(self.log[0, 0])]
        ordered: IntArray = entries[np.argsort(entries[:, layout.L_TIME], kind="stable")]
        return ordered

    def clear_log(self) -> None:
        """Empty the log."""
        self.log[0, 0] = 0

    def stop_logging(self) -> None:
        """Record nothing from now on but the columns of `requests`."""
        self.log = np.zeros((1, layout.L_COLUMNS), dtype=np.int64)


def nanoseconds(seconds: FloatArray) -> IntArray:
    """Times in whole nanoseconds."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def block_size_of(scenario: Scenario, device: Device) -> int:
    """Tokens per KV block on this device: the engine's setting, else the device's own."""
    return device.block_size if scenario.engine.block_size is None else scenario.engine.block_size


def _request_rows(scenario: Scenario) -> IntArray:
    workload = scenario.workload
    rows = np.full((len(workload), layout.R_COLUMNS), layout.NEVER, dtype=np.int64)
    rows[:, layout.R_PROMPT] = workload.prompt_tokens
    rows[:, layout.R_OUTPUT] = workload.output_tokens
    rows[:, layout.R_READY] = nanoseconds(workload.arrival_s)
    rows[:, [layout.R_GENERATED, layout.R_COMPUTED, layout.R_PREEMPTIONS]] = 0
    return rows


def _device_rows(scenario: Scenario) -> IntArray:
    fleet_size = len(scenario.devices)
    rows = np.zeros((fleet_size + scenario.prefill_workers, layout.D_COLUMNS), dtype=np.int64)
    pool = scenario.prefill_pool
    largest = max(scenario.devices, key=lambda device: device.kv_tokens)
    for d, row in enumerate(rows):
        device = scenario.devices[d] if d < fleet_size else largest
        block_size = block_size_of(scenario, device)
        kv_tokens = device.kv_tokens
        if d < fleet_size:
            row[layout.D_MODE] = _MODES[scenario.mode]
            row[layout.D_SLOTS] = device.batch_slots
            row[layout.D_MAX_TOKENS] = device.token_budget or scenario.engine.max_batched_tokens
        else:
            row[layout.D_MODE] = layout.MODE_PREFILL
            row[layout.D_SLOTS] = pool.slots
            row[layout.D_MAX_TOKENS] = pool.max_batched_tokens
            kv_tokens = pool.kv_tokens or kv_tokens
        row[layout.D_RESERVES] = int(scenario.engine.eviction == "reserve")
        row[layout.D_BLOCK_SIZE] = block_size
        row[[layout.D_FREE, layout.D_UNRESERVED]] = kv_tokens // block_size
        row[layout.D_AHEAD] = int(scenario.mode == "decode")
        row[layout.D_RECOMPUTE_PS] = round(scenario.engine.recompute_s_per_token * PS_PER_S)
        row[layout.D_NEXT_FINISH] = layout.FOREVER
        row[[layout.D_HEAD, layout.D_TAIL, layout.D_BLOCKED]] = layout.NOBODY
        row[layout.D_STOP] = layout.NEVER
    return rows


def _pack_models(scenario: Scenario, devices: IntArray) -> FloatArray:
    """All distinct models in one array; writes where each begins into the rows of the devices that use it."""
    parts: list[FloatArray] = []
    starts: dict[int, int] = {}

    def place(model: DecodeLatency | PrefillLatency) -> int:
        if id(model) not in starts:
            starts[id(model)] = sum(len(part) for part in parts)
            parts.append(model.packed)
        return starts[id(model)]

    for d in range(len(devices)):
        latency = scenario.latency
        if d < len(scenario.devices):
            devices[d, layout.D_DECODE_AT] = place(latency[d] if isinstance(latency, tuple) else latency)
        if scenario.prefill is not None:
            prefill = scenario.prefill
            devices[d, layout.D_PREFILL_AT] = place(prefill[d] if isinstance(prefill, tuple) else prefill)
    return np.concatenate(parts)
