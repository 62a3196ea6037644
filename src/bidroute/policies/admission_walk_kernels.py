"""Compiled greedy walks over an ordered set of candidates, with the rule on overtaking (see `admission`)."""

from __future__ import annotations

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.admission_kernels import (
    BEHIND,
    BLOCK,
    CAPACITY,
    DEVICE,
    FREE,
    HELD,
    KV_FUTURE,
    KV_NOW,
    LEASES,
    NEVER_HERE,
    NO_SLOT,
    NO_TOKENS,
    RELEASED,
    View,
    add,
    in_blocks,
    judge,
)

EXACT_KINDS = 64  # four per doubling of an exact length, to 65 536 tokens
NOBODY = -1
ENDLESS = 1 << 62
MOST_REFUSALS = 32  # the least busy devices that could ever hold it have refused: the busier will not be asked


@kernel
def _kind(length_class: int, exact: int) -> int:
    """Candidates of one kind differ, for the memory of failures, by prompt only."""
    if exact == 0:
        return EXACT_KINDS + length_class
    return min(int(4.0 * np.log2(exact)), EXACT_KINDS - 1)


@kernel
def _remember_failure(failed_prompt: IntArray, prompt: int, length_class: int, exact: int) -> None:
    """Batches only fill up during a walk: whoever needs at least as much of everything fails as well."""
    kind = _kind(length_class, exact)
    if exact == 0:
        failed_prompt[kind] = min(failed_prompt[kind], prompt)
        return
    for longer in range(kind + 1, EXACT_KINDS):
        failed_prompt[longer] = min(failed_prompt[longer], prompt)


@kernel
def _busy(numbers: IntArray, speed: FloatArray, d: int) -> float:
    """How unattractive a device is: the fuller by slots and KV and the slower, the more."""
    slots = max(numbers[d, FREE] + numbers[d, LEASES], 1)
    full = numbers[d, LEASES] / slots + numbers[d, HELD] / max(numbers[d, CAPACITY], 1)
    return float((1.0 + full) / speed[numbers[d, DEVICE]])


@kernel
def _before(busy: FloatArray, one: int, other: int) -> bool:
    return bool(busy[one] < busy[other] or (busy[one] == busy[other] and one < other))


@kernel
def _sort_in(by_busy: IntArray, busy: FloatArray, place: int, count: int) -> None:
    """Move the device at `place` among the first `count`, rising by `busy`; ties go to the earlier device.

    The others are in order; it may have to move either way.
    """
    d = by_busy[place]
    while place + 1 < count and _before(busy, by_busy[place + 1], d):
        by_busy[place] = by_busy[place + 1]
        place += 1
    while place > 0 and _before(busy, d, by_busy[place - 1]):
        by_busy[place] = by_busy[place - 1]
        place -= 1
    by_busy[place] = d


@kernel
def _most_free(numbers: IntArray) -> int:
    most = 0
    for d in range(len(numbers)):
        if numbers[d, FREE] > 0:
            most = max(most, numbers[d, CAPACITY] - numbers[d, HELD])
    return most


@kernel
def walk_rows(
    view: View,
    prompts: IntArray,
    classes: IntArray,
    lengths: IntArray,
    skips: IntArray,
    order: IntArray,
    speed: FloatArray,
    verdicts: IntArray,
    released: IntArray,
    chosen: IntArray,
) -> tuple[int, int, int]:
    """Offer each row of the queue in `order` to the devices, the least busy first, until one takes it.

    Fills `verdicts` [len(order)], and for each of the k released its place in the order and its device. Returns k,
    the best row that was held (or NOBODY), and how many were taken past it. Once that makes `max_skips` in all, the
    devices on which it could ever run are kept for it.
    """
    numbers = view.numbers
    devices = len(numbers)
    busy, by_busy = np.empty(devices), np.empty(devices, dtype=np.int64)
    slots, most_free = 0, _most_free(numbers)
    for d in range(devices):
        busy[d], by_busy[d] = _busy(numbers, speed, d), d
        _sort_in(by_busy, busy, d, d + 1)
        slots += numbers[d, FREE]
    failed_prompt = np.full(EXACT_KINDS + view.residual.shape[0], ENDLESS)
    kept = np.zeros(devices, dtype=np.bool_)  # for the best held row: it could run there one day
    taken, best, passed, devices_kept = 0, NOBODY, 0, 0
    for k in range(len(order)):
        if slots <= 0 or devices_kept == devices:
            verdicts[k] = NO_SLOT if slots <= 0 else BEHIND
            continue
        row = order[k]
        prompt, length_class, length = prompts[row], classes[row], lengths[row]
        if failed_prompt[_kind(length_class, length)] <= prompt:
            verdicts[k] = BEHIND if devices_kept > 0 else KV_NOW if prompt + 1 > most_free else KV_FUTURE
            continue
        verdict, refusals = NEVER_HERE, 0
        for place in range(devices):
            d = by_busy[place]
            answer = BEHIND if kept[d] else judge(view, d, prompt, length_class, length)
            verdict = answer if answer == RELEASED else max(verdict, answer)
            if verdict == RELEASED:
                add(view, d, prompt, length_class, length)
                released[taken], chosen[taken] = k, numbers[d, DEVICE]
                busy[d] = _busy(numbers, speed, d)
                _sort_in(by_busy, busy, place, devices)
                break
            refusals += NO_TOKENS < answer < BEHIND
            if refusals == MOST_REFUSALS:
                break
        verdicts[k] = verdict
        if verdict == RELEASED:
            taken, slots, most_free = taken + 1, slots - 1, _most_free(numbers)
            passed += 1 if best != NOBODY else 0
        elif NO_TOKENS < verdict < BEHIND:
            _remember_failure(failed_prompt, prompt, length_class, length)
            best = row if best == NOBODY else best
        if best != NOBODY and devices_kept == 0 and skips[best] + passed >= view.max_skips:
            for d in range(devices):
                kept[d] = in_blocks(prompts[best] + max(lengths[best], 1), numbers[d, BLOCK]) <= numbers[d, CAPACITY]
                devices_kept += kept[d]
    return taken, best, passed
