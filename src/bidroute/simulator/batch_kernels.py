"""One device's batch: who joins, who is thrown out, who leaves. Pass timing lives in `engine_kernels`."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import IntArray
from bidroute.simulator.layout import (
    B_BASE,
    B_FINISH,
    B_ID,
    D_AHEAD,
    D_BLOCK_SIZE,
    D_BLOCKED,
    D_BUDGET,
    D_BUSY,
    D_CLOCK,
    D_CONTEXT,
    D_EVICTED,
    D_FREE,
    D_HEAD,
    D_MODE,
    D_NEXT_FINISH,
    D_PASS_EXTRA,
    D_PASS_ISL,
    D_PASS_PREFILLS,
    D_PASS_PREFIX,
    D_PASS_RESUMED,
    D_PASS_RESUMED_CONTEXT,
    D_PASSES,
    D_PHASE,
    D_PREFILLING,
    D_QUEUED,
    D_RECOMPUTE_PS,
    D_RESERVES,
    D_RUNNING,
    D_SLOTS,
    D_TAIL,
    D_UNRESERVED,
    D_WASTED,
    FOREVER,
    L_BUSY,
    L_DEVICE,
    L_ID,
    L_KIND,
    L_PASSES,
    L_TIME,
    MODE_AGGREGATED,
    MODE_DECODE,
    MODE_PREFILL,
    NEVER,
    NOBODY,
    PREEMPTED,
    R_COMPUTED,
    R_END,
    R_GENERATED,
    R_NEXT,
    R_OUTPUT,
    R_PREEMPTIONS,
    R_PROMPT,
    R_READY,
    R_START,
    STARTED,
)


@kernel
def blocks_of(tokens: int, block_size: int) -> int:
    """KV blocks that hold `tokens`."""
    return (tokens + block_size - 1) // block_size


@kernel
def note(log: IntArray, devices: IntArray, d: int, kind: int, request: int) -> None:
    """Log an event of device d, at its clock."""
    if log.shape[0] == 1:
        return
    log[0, 0] += 1
    row = log[0, 0]
    log[row, L_KIND] = kind
    log[row, L_ID] = request
    log[row, L_DEVICE] = d
    log[row, L_PASSES] = devices[d, D_PASSES]
    log[row, L_TIME] = devices[d, D_CLOCK]
    log[row, L_BUSY] = devices[d, D_BUSY]


@kernel
def push_back(requests: IntArray, devices: IntArray, d: int, request: int) -> None:
    """Add a request to the end of the device's own queue."""
    requests[request, R_NEXT] = NOBODY
    if devices[d, D_HEAD] == NOBODY:
        devices[d, D_HEAD] = request
    else:
        requests[devices[d, D_TAIL], R_NEXT] = request
    devices[d, D_TAIL] = request
    devices[d, D_QUEUED] += 1


@kernel
def push_front(requests: IntArray, devices: IntArray, d: int, request: int) -> None:
    """Put a request at the head of the device's own queue."""
    requests[request, R_NEXT] = devices[d, D_HEAD]
    if devices[d, D_HEAD] == NOBODY:
        devices[d, D_TAIL] = request
    devices[d, D_HEAD] = request
    devices[d, D_QUEUED] += 1


@kernel
def pop_front(requests: IntArray, devices: IntArray, d: int) -> int:
    """Take the head of the device's own queue."""
    request = int(devices[d, D_HEAD])
    devices[d, D_HEAD] = requests[request, R_NEXT]
    devices[d, D_QUEUED] -= 1
    return request


@kernel
def start_decoding(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, d: int, row: int) -> None:
    """The request in this row of the batch decodes from now on, with the tokens it has (R_GENERATED)."""
    request = batch[d, row, B_ID]
    base = devices[d, D_PASSES] - requests[request, R_GENERATED]
    batch[d, row, B_BASE] = base
    batch[d, row, B_FINISH] = base + requests[request, R_OUTPUT]
    devices[d, D_NEXT_FINISH] = min(devices[d, D_NEXT_FINISH], batch[d, row, B_FINISH])
    devices[d, D_CONTEXT] += requests[request, R_PROMPT] + requests[request, R_GENERATED]
    growth[d, _phase(requests, devices, batch, d, row)] += 1


@kernel
def _phase(requests: IntArray, devices: IntArray, batch: IntArray, d: int, row: int) -> int:
    """The value of D_PHASE at which this decoding request needs a new block."""
    written = requests[batch[d, row, B_ID], R_PROMPT] - batch[d, row, B_BASE] + devices[d, D_AHEAD] - 1
    return int(written % devices[d, D_BLOCK_SIZE])


@kernel
def stop_decoding(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, d: int, row: int) -> None:
    """Undo `start_decoding`; the caller recomputes D_NEXT_FINISH."""
    request = batch[d, row, B_ID]
    requests[request, R_GENERATED] = devices[d, D_PASSES] - batch[d, row, B_BASE]
    devices[d, D_CONTEXT] -= requests[request, R_PROMPT] + requests[request, R_GENERATED]
    growth[d, _phase(requests, devices, batch, d, row)] -= 1


@kernel
def find_next_finish(devices: IntArray, batch: IntArray, d: int) -> None:
    """Recompute D_NEXT_FINISH from the batch."""
    finish = FOREVER
    for row in range(devices[d, D_RUNNING] - devices[d, D_PREFILLING]):
        finish = min(finish, batch[d, row, B_FINISH])
    devices[d, D_NEXT_FINISH] = finish


@kernel
def grow(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int) -> None:
    """Give every decoding request the block its next token needs; where blocks run out, throw out the last in."""
    phase = devices[d, D_PHASE]
    if growth[d, phase] <= devices[d, D_FREE]:
        devices[d, D_FREE] -= growth[d, phase]
        return
    row = 0
    while row < devices[d, D_RUNNING] - devices[d, D_PREFILLING]:
        if _phase(requests, devices, batch, d, row) == phase:
            while devices[d, D_FREE] == 0 and row < devices[d, D_RUNNING]:
                _evict_last(requests, devices, batch, growth, log, d)
            if row < devices[d, D_RUNNING]:
                devices[d, D_FREE] -= 1
        row += 1
    find_next_finish(devices, batch, d)


@kernel
def _evict_last(
    requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int
) -> None:
    row = devices[d, D_RUNNING] - 1
    request = batch[d, row, B_ID]
    block_size = devices[d, D_BLOCK_SIZE]
    if devices[d, D_PREFILLING] > 0:
        devices[d, D_PREFILLING] -= 1
        held = requests[request, R_PROMPT] + requests[request, R_GENERATED]
        devices[d, D_WASTED] += requests[request, R_COMPUTED]
    else:
        stop_decoding(requests, devices, batch, growth, d, row)
        context = requests[request, R_PROMPT] + requests[request, R_GENERATED]
        held = context - 1  # its next token has no block yet
        devices[d, D_WASTED] += context
    requests[request, R_COMPUTED] = 0
    requests[request, R_PREEMPTIONS] += 1
    devices[d, D_FREE] += blocks_of(held + devices[d, D_AHEAD], block_size)
    devices[d, D_UNRESERVED] += lifetime_blocks(requests, devices, d, request)
    devices[d, D_RUNNING] = row
    devices[d, D_EVICTED] = 1
    devices[d, D_BLOCKED] = NOBODY
    push_front(requests, devices, d, request)
    note(log, devices, d, PREEMPTED, request)


@kernel
def admit(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int) -> None:
    """Let waiting requests join, first come first served, while slots, token budget and KV admit the head."""
    if devices[d, D_EVICTED] == 1:
        return
    while devices[d, D_HEAD] != NOBODY and requests[devices[d, D_HEAD], R_READY] <= devices[d, D_CLOCK]:
        if devices[d, D_BUDGET] <= 0:
            return
        request = devices[d, D_HEAD]
        if devices[d, D_RUNNING] >= devices[d, D_SLOTS] or not _kv_admits(requests, devices, d, request):
            devices[d, D_BLOCKED] = request
            return
        _join(requests, devices, batch, growth, d, pop_front(requests, devices, d))
        note(log, devices, d, STARTED, request)


@kernel
def _kv_admits(requests: IntArray, devices: IntArray, d: int, request: int) -> bool:
    """Whether its current length fits the free blocks, or under reservation its whole life the unreserved ones."""
    block_size = devices[d, D_BLOCK_SIZE]
    if devices[d, D_RESERVES] == 1:
        return bool(lifetime_blocks(requests, devices, d, request) <= devices[d, D_UNRESERVED])
    length = requests[request, R_PROMPT] + requests[request, R_GENERATED] + devices[d, D_AHEAD]
    return bool(blocks_of(length, block_size) <= devices[d, D_FREE])


@kernel
def lifetime_blocks(requests: IntArray, devices: IntArray, d: int, request: int) -> int:
    """Blocks that reservation keeps for a request until it ends (on a prefill worker: its prompt's)."""
    tokens = requests[request, R_PROMPT]
    if devices[d, D_MODE] != MODE_PREFILL:
        tokens += requests[request, R_OUTPUT]
    return blocks_of(tokens, devices[d, D_BLOCK_SIZE])


@kernel
def _join(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, d: int, request: int) -> None:
    row = devices[d, D_RUNNING]
    batch[d, row, B_ID] = request
    devices[d, D_RUNNING] += 1
    if requests[request, R_START] == NEVER and devices[d, D_MODE] != MODE_PREFILL:
        requests[request, R_START] = devices[d, D_CLOCK]
    context = requests[request, R_PROMPT] + requests[request, R_GENERATED]
    devices[d, D_FREE] -= blocks_of(context + devices[d, D_AHEAD], devices[d, D_BLOCK_SIZE])
    devices[d, D_UNRESERVED] -= lifetime_blocks(requests, devices, d, request)
    if devices[d, D_MODE] == MODE_DECODE:
        start_decoding(requests, devices, batch, growth, d, row)
        if requests[request, R_PREEMPTIONS] > 0:
            devices[d, D_PASS_EXTRA] += (devices[d, D_RECOMPUTE_PS] * context + 500) // 1000
        return
    devices[d, D_PREFILLING] += 1
    plan_prefill(requests, devices, d, request)


@kernel
def plan_prefill(requests: IntArray, devices: IntArray, d: int, request: int) -> None:
    """Give a request its next prefill chunk from the budget of the pass that is being opened."""
    prefix = requests[request, R_COMPUTED]
    computed = min(requests[request, R_PROMPT], prefix + devices[d, D_BUDGET])
    requests[request, R_COMPUTED] = computed
    devices[d, D_BUDGET] -= max(computed - prefix, 1)
    devices[d, D_PASS_PREFILLS] += 1
    devices[d, D_PASS_ISL] += computed
    devices[d, D_PASS_PREFIX] += prefix
    resumed = devices[d, D_MODE] == MODE_AGGREGATED and requests[request, R_GENERATED] > 0
    if resumed and computed == requests[request, R_PROMPT]:
        devices[d, D_PASS_RESUMED] += 1
        devices[d, D_PASS_RESUMED_CONTEXT] += requests[request, R_PROMPT] + requests[request, R_GENERATED]


@kernel
def leave(requests: IntArray, devices: IntArray, d: int, request: int) -> None:
    """A request that has produced all its tokens frees its slot and its KV; its row is dropped by the caller."""
    requests[request, R_END] = devices[d, D_CLOCK]
    held = requests[request, R_PROMPT] + requests[request, R_OUTPUT] - 1 + devices[d, D_AHEAD]  # not the last token
    devices[d, D_FREE] += blocks_of(held, devices[d, D_BLOCK_SIZE])
    devices[d, D_UNRESERVED] += lifetime_blocks(requests, devices, d, request)
    devices[d, D_BLOCKED] = NOBODY
