"""The passes of one device: open, launch, complete, and roll over the iterations at which nothing happens.

A device stands at a BOUNDARY, has a pass OPEN (running requests have grown, the queue's head was asked), or is
RUNNING one that ends at D_CLOCK. The cost is O(batch) per event (join, leave, blocks run out) and O(1) per
iteration between events.
"""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.simulator.batch_kernels import admit, find_next_finish, grow, leave, note, plan_prefill, start_decoding
from bidroute.simulator.latency_kernels import decode_line, decode_ns, prefill_ns
from bidroute.simulator.layout import (
    B_BASE,
    B_FINISH,
    B_ID,
    BOUNDARY,
    D_AHEAD,
    D_BLOCK_SIZE,
    D_BLOCKED,
    D_BUDGET,
    D_BUSY,
    D_CLOCK,
    D_CONTEXT,
    D_DECODE_AT,
    D_EVICTED,
    D_FREE,
    D_HEAD,
    D_MAX_TOKENS,
    D_MODE,
    D_NEXT_FINISH,
    D_PASS_EXTRA,
    D_PASS_ISL,
    D_PASS_PREFILLS,
    D_PASS_PREFIX,
    D_PASS_RESUMED,
    D_PASS_RESUMED_CONTEXT,
    D_PASS_START,
    D_PASSES,
    D_PHASE,
    D_PREFILL_AT,
    D_PREFILLING,
    D_RUNNING,
    D_SLOTS,
    D_STATE,
    D_STOP,
    FINISHED,
    FOREVER,
    HANDED_OFF,
    MODE_DECODE,
    MODE_PREFILL,
    NEVER,
    NOBODY,
    OPEN,
    PREFILLED,
    R_COMPUTED,
    R_FIRST,
    R_GENERATED,
    R_OUTPUT,
    R_PROMPT,
    R_READY,
    RUNNING,
)


@kernel
def open_pass(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int) -> None:
    """At a boundary: the running requests grow (or are preempted), then the engine's own queue is admitted."""
    devices[d, D_STATE] = OPEN
    devices[d, D_STOP] = NEVER
    devices[d, D_EVICTED] = 0
    devices[d, D_PASS_PREFILLS] = 0
    devices[d, D_PASS_ISL] = 0
    devices[d, D_PASS_PREFIX] = 0
    devices[d, D_PASS_RESUMED] = 0
    devices[d, D_PASS_RESUMED_CONTEXT] = 0
    devices[d, D_PASS_EXTRA] = 0
    grow(requests, devices, batch, growth, log, d)
    partly = devices[d, D_PREFILLING]  # at most one, the last in
    decoding = devices[d, D_RUNNING] - partly
    devices[d, D_BUDGET] = FOREVER if devices[d, D_MODE] == MODE_DECODE else devices[d, D_MAX_TOKENS] - decoding
    if partly > 0:
        plan_prefill(requests, devices, d, batch[d, decoding, B_ID])
    admit(requests, devices, batch, growth, log, d)


@kernel
def launch(
    requests: IntArray,
    devices: IntArray,
    batch: IntArray,
    growth: IntArray,
    models: FloatArray,
    log: IntArray,
    d: int,
) -> None:
    """Admit what was queued since the pass was opened, then run the pass; an empty device goes idle instead."""
    admit(requests, devices, batch, growth, log, d)
    if devices[d, D_RUNNING] == 0:
        devices[d, D_STATE] = BOUNDARY
        return
    duration = devices[d, D_PASS_EXTRA]
    prefills = devices[d, D_PASS_PREFILLS]
    if prefills > 0:
        new_tokens = prefills * (devices[d, D_PASS_ISL] // prefills - devices[d, D_PASS_PREFIX] // prefills)
        duration += prefill_ns(models, devices[d, D_PREFILL_AT], new_tokens)
    decoding = devices[d, D_RUNNING] - devices[d, D_PREFILLING] + devices[d, D_PASS_RESUMED]
    if decoding > 0:
        context = devices[d, D_CONTEXT] + devices[d, D_PASS_RESUMED_CONTEXT]
        duration += decode_ns(models, devices[d, D_DECODE_AT], decoding, context)
    devices[d, D_PASS_START] = devices[d, D_CLOCK]
    devices[d, D_CLOCK] += duration
    devices[d, D_STATE] = RUNNING
    if devices[d, D_MODE] == MODE_DECODE:
        _stamp_first_tokens(requests, devices, batch, d)


@kernel
def _stamp_first_tokens(requests: IntArray, devices: IntArray, batch: IntArray, d: int) -> None:
    """In a decode-only engine the first token of a joiner comes at the end of the pass it joined in."""
    row = devices[d, D_RUNNING] - 1
    while row >= 0 and batch[d, row, B_BASE] == devices[d, D_PASSES] - requests[batch[d, row, B_ID], R_GENERATED]:
        if requests[batch[d, row, B_ID], R_FIRST] == NEVER:
            requests[batch[d, row, B_ID], R_FIRST] = devices[d, D_CLOCK]
        row -= 1


@kernel
def complete(requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int) -> None:
    """End the running pass: one token for every decoding request, the finished leave, prefills turn to decoding."""
    prefilling = devices[d, D_PREFILLING]
    decoding = devices[d, D_RUNNING] - prefilling
    devices[d, D_STATE] = BOUNDARY
    devices[d, D_PASSES] += 1
    devices[d, D_BUSY] += devices[d, D_CLOCK] - devices[d, D_PASS_START]
    devices[d, D_CONTEXT] += decoding
    devices[d, D_PHASE] = (devices[d, D_PHASE] if devices[d, D_PHASE] > 0 else devices[d, D_BLOCK_SIZE]) - 1
    if devices[d, D_PASSES] == devices[d, D_NEXT_FINISH]:
        _finish_decoding(requests, devices, batch, growth, log, d)
    if prefilling > 0:
        _end_prefills(requests, devices, batch, growth, log, d)


@kernel
def _finish_decoding(
    requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int
) -> None:
    passes = devices[d, D_PASSES]
    decoding = devices[d, D_RUNNING] - devices[d, D_PREFILLING]
    block_size, ahead = devices[d, D_BLOCK_SIZE], devices[d, D_AHEAD]
    kept = 0
    for row in range(devices[d, D_RUNNING]):
        if row < decoding and batch[d, row, B_FINISH] == passes:
            request = batch[d, row, B_ID]
            prompt = requests[request, R_PROMPT]
            devices[d, D_CONTEXT] -= prompt + requests[request, R_OUTPUT]
            growth[d, (prompt - batch[d, row, B_BASE] + ahead - 1) % block_size] -= 1
            leave(requests, devices, d, request)
            note(log, devices, d, FINISHED, request)
            continue
        if kept < row:
            batch[d, kept, B_ID] = batch[d, row, B_ID]
            batch[d, kept, B_BASE] = batch[d, row, B_BASE]
            batch[d, kept, B_FINISH] = batch[d, row, B_FINISH]
        kept += 1
    devices[d, D_RUNNING] = kept
    find_next_finish(devices, batch, d)


@kernel
def _end_prefills(
    requests: IntArray, devices: IntArray, batch: IntArray, growth: IntArray, log: IntArray, d: int
) -> None:
    """Requests whose prompt is processed have one token more and decode from now on (or leave a prefill worker)."""
    first = devices[d, D_RUNNING] - devices[d, D_PREFILLING]
    kept = first
    for row in range(first, devices[d, D_RUNNING]):
        request = batch[d, row, B_ID]
        batch[d, kept, B_ID] = request
        if requests[request, R_COMPUTED] < requests[request, R_PROMPT]:
            kept += 1  # the last one, cut by the budget, goes on in the next pass
            continue
        devices[d, D_PREFILLING] -= 1
        if devices[d, D_MODE] == MODE_PREFILL:
            devices[d, D_BLOCKED] = NOBODY
            note(log, devices, d, HANDED_OFF, request)
            continue
        requests[request, R_GENERATED] += 1
        if requests[request, R_FIRST] == NEVER:
            requests[request, R_FIRST] = devices[d, D_CLOCK]
        note(log, devices, d, PREFILLED, request)
        if requests[request, R_GENERATED] == requests[request, R_OUTPUT]:
            leave(requests, devices, d, request)
            note(log, devices, d, FINISHED, request)
            continue
        start_decoding(requests, devices, batch, growth, d, kept)
        kept += 1
    devices[d, D_RUNNING] = kept


@kernel
def quiet_until(requests: IntArray, devices: IntArray, d: int) -> int:
    """While a pass runs: the time from which a boundary may admit the queue's head (FOREVER: not before a finish)."""
    if devices[d, D_PREFILLING] > 0:
        return 0
    head = devices[d, D_HEAD]
    if head == NOBODY or head == devices[d, D_BLOCKED]:
        return FOREVER
    return int(requests[head, R_READY])


@kernel
def roll(devices: IntArray, growth: IntArray, models: FloatArray, d: int, limit: int) -> None:
    """Pass over boundaries before `limit` at which nothing happens: nobody joins, ends, or lacks a block."""
    running = devices[d, D_RUNNING]
    passes, context, free = devices[d, D_PASSES], devices[d, D_CONTEXT], devices[d, D_FREE]
    start, end, phase = devices[d, D_PASS_START], devices[d, D_CLOCK], devices[d, D_PHASE]
    last_phase = devices[d, D_BLOCK_SIZE] - 1
    quiet = devices[d, D_NEXT_FINISH] - 1 - passes  # boundaries before the one where somebody ends
    minimum = int(models[devices[d, D_DECODE_AT] + 1])
    kv_limit = -1
    intercept, slope = 0.0, 0.0
    needed = growth[d]
    while quiet > 0 and end < limit:
        next_phase = phase - 1 if phase > 0 else last_phase
        blocks = needed[next_phase]
        if blocks > free:
            break
        phase = next_phase
        free -= blocks
        quiet -= 1
        passes += 1
        context += running
        if context > kv_limit:
            intercept, slope, kv_limit = decode_line(models, devices[d, D_DECODE_AT], running, context)
        start = end
        end = start + max(minimum, int(intercept + slope * context + 0.5))
    devices[d, D_PASSES], devices[d, D_CONTEXT], devices[d, D_FREE] = passes, context, free
    devices[d, D_BUSY] += start - devices[d, D_PASS_START]
    devices[d, D_PASS_START], devices[d, D_CLOCK], devices[d, D_PHASE] = start, end, phase


@kernel
def advance(
    requests: IntArray,
    devices: IntArray,
    batch: IntArray,
    growth: IntArray,
    models: FloatArray,
    log: IntArray,
    d: int,
    until: int,
) -> bool:
    """Complete passes that end by `until` and start those that begin before it; False when the log is full first.

    A prefill worker only completes: the host starts its passes, because decode workers free its KV.
    """
    room = log.shape[0] - 1 - 4 * devices[d, D_SLOTS]
    while True:
        if log.shape[0] > 1 and log[0, 0] > room:
            return False
        if devices[d, D_STATE] == RUNNING:
            if devices[d, D_MODE] != MODE_PREFILL:
                limit = min(until, quiet_until(requests, devices, d))
                if devices[d, D_CLOCK] < limit:
                    roll(devices, growth, models, d, limit)
            if devices[d, D_CLOCK] > until:
                return True
            complete(requests, devices, batch, growth, log, d)
        if devices[d, D_MODE] == MODE_PREFILL:
            return True
        if devices[d, D_RUNNING] == 0:
            if devices[d, D_HEAD] == NOBODY:
                return True
            devices[d, D_CLOCK] = max(devices[d, D_CLOCK], requests[devices[d, D_HEAD], R_READY])
        if devices[d, D_CLOCK] >= until:
            return True
        open_pass(requests, devices, batch, growth, log, d)
        launch(requests, devices, batch, growth, models, log, d)


@kernel
def next_stop(requests: IntArray, devices: IntArray, growth: IntArray, models: FloatArray, d: int) -> int:
    """The next boundary at which a RUNNING device may admit or must evict: where a host has something to decide."""
    end = int(devices[d, D_CLOCK])
    room = devices[d, D_RUNNING] < devices[d, D_SLOTS] and devices[d, D_HEAD] == NOBODY
    if room or quiet_until(requests, devices, d) < FOREVER:
        return end
    running, context, free = devices[d, D_RUNNING], devices[d, D_CONTEXT], devices[d, D_FREE]
    phase = devices[d, D_PHASE]
    for _ in range(devices[d, D_NEXT_FINISH] - 1 - devices[d, D_PASSES]):
        phase = (phase if phase > 0 else devices[d, D_BLOCK_SIZE]) - 1
        free -= growth[d, phase]
        if free < 0:
            break
        context += running
        end += decode_ns(models, devices[d, D_DECODE_AT], running, context)
    return end
