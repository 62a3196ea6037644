"""All devices at once: what a host calls. Devices `first` … `last`−1 are worked on, in order of index."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.simulator.batch_kernels import blocks_of, lifetime_blocks, push_back
from bidroute.simulator.engine_kernels import advance, launch, next_stop, open_pass
from bidroute.simulator.layout import (
    BOUNDARY,
    D_BLOCK_SIZE,
    D_BLOCKED,
    D_BUDGET,
    D_CLOCK,
    D_EVICTED,
    D_FREE,
    D_HEAD,
    D_RUNNING,
    D_SLOTS,
    D_STATE,
    D_STOP,
    D_UNRESERVED,
    FOREVER,
    NEVER,
    NOBODY,
    OPEN,
    R_PROMPT,
    R_READY,
    RUNNING,
)


@kernel
def advance_all(
    requests: IntArray,
    devices: IntArray,
    batch: IntArray,
    growth: IntArray,
    models: FloatArray,
    log: IntArray,
    first: int,
    last: int,
    until: int,
) -> int:
    """`advance` every device; returns the first one that was cut short by a full log, else `last`."""
    for d in range(first, last):
        if not advance(requests, devices, batch, growth, models, log, d, until):
            return d
    return last


@kernel
def open_all(
    requests: IntArray,
    devices: IntArray,
    batch: IntArray,
    growth: IntArray,
    log: IntArray,
    first: int,
    last: int,
    now: int,
) -> int:
    """Open a pass on every device that stands at a boundary; returns the first one that found the log full."""
    for d in range(first, last):
        if log[0, 0] > log.shape[0] - 1 - 4 * devices[d, D_SLOTS]:
            return d
        if devices[d, D_STATE] == BOUNDARY:
            devices[d, D_CLOCK] = now
            open_pass(requests, devices, batch, growth, log, d)
    return last


@kernel
def launch_all(
    requests: IntArray,
    devices: IntArray,
    batch: IntArray,
    growth: IntArray,
    models: FloatArray,
    log: IntArray,
    first: int,
    last: int,
) -> int:
    """Launch every open pass; returns the first device that found the log full, else `last`."""
    for d in range(first, last):
        if log[0, 0] > log.shape[0] - 1 - 4 * devices[d, D_SLOTS]:
            return d
        if devices[d, D_STATE] == OPEN:
            launch(requests, devices, batch, growth, models, log, d)
    return last


@kernel
def mark_ready(devices: IntArray, ready: IntArray) -> int:
    """Write the devices with an open pass that a request could join into `ready`; returns how many there are."""
    count = 0
    for d in range(ready.shape[0]):
        room = devices[d, D_RUNNING] < devices[d, D_SLOTS] and devices[d, D_BUDGET] > 0
        if devices[d, D_STATE] == OPEN and room and devices[d, D_HEAD] == NOBODY and devices[d, D_EVICTED] == 0:
            ready[count] = d
            count += 1
    return count


@kernel
def earliest_stop(
    requests: IntArray, devices: IntArray, growth: IntArray, models: FloatArray, first: int, last: int
) -> int:
    """The earliest `next_stop` of the running devices; FOREVER when none runs."""
    stop = FOREVER
    for d in range(first, last):
        if devices[d, D_STATE] == RUNNING:
            if devices[d, D_STOP] < devices[d, D_CLOCK]:
                devices[d, D_STOP] = next_stop(requests, devices, growth, models, d)
            stop = min(stop, devices[d, D_STOP])
    return stop


@kernel
def earliest_end(devices: IntArray, first: int, last: int) -> int:
    """The earliest end of a running pass; FOREVER when none runs."""
    end = FOREVER
    for d in range(first, last):
        if devices[d, D_STATE] == RUNNING:
            end = min(end, devices[d, D_CLOCK])
    return end


@kernel
def push(requests: IntArray, devices: IntArray, d: int, request: int, now: int) -> None:
    """A request enters the device's own queue."""
    requests[request, R_READY] = now
    push_back(requests, devices, d, request)
    devices[d, D_STOP] = NEVER


@kernel
def release_prompt(requests: IntArray, devices: IntArray, d: int, request: int) -> None:
    """The decode side has taken a prompt's KV from prefill worker d."""
    devices[d, D_FREE] += blocks_of(requests[request, R_PROMPT], devices[d, D_BLOCK_SIZE])
    devices[d, D_UNRESERVED] += lifetime_blocks(requests, devices, d, request)
    devices[d, D_BLOCKED] = NOBODY
