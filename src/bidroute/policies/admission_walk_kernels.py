"""Compiled greedy walks over an ordered set of candidates, with the rule on overtaking (see `admission`)."""

from __future__ import annotations

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.admission_kernels import (
    BEHIND,
    CAPACITY,
    DEVICE,
    FREE,
    HELD,
    KV_FUTURE,
    KV_NOW,
    LEASES,
    NEVER_HERE,
    NO_SLOT,
    RELEASED,
    View,
    add,
    judge,
    startable,
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
    the best row that was held (or NOBODY), and how many were taken past it.
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
    taken, best, passed, closed = 0, NOBODY, 0, False
    for k in range(len(order)):
        if slots <= 0 or closed:
            verdicts[k] = NO_SLOT if slots <= 0 else BEHIND
            continue
        row = order[k]
        prompt, length_class, length = prompts[row], classes[row], lengths[row]
        if failed_prompt[_kind(length_class, length)] <= prompt:
            verdicts[k] = KV_NOW if prompt + 1 > most_free else KV_FUTURE
            continue
        verdict, refusals = NEVER_HERE, 0
        for place in range(devices):
            d = by_busy[place]
            answer = judge(view, d, prompt, length_class, length)
            verdict = max(verdict, answer)
            if verdict == RELEASED:
                add(view, d, prompt, length_class, length)
                released[taken], chosen[taken] = k, numbers[d, DEVICE]
                busy[d] = _busy(numbers, speed, d)
                _sort_in(by_busy, busy, place, devices)
                break
            refusals += answer > NO_SLOT
            if refusals == MOST_REFUSALS:
                break
        verdicts[k] = verdict
        if verdict == RELEASED:
            taken, slots, most_free = taken + 1, slots - 1, _most_free(numbers)
            passed += 1 if best != NOBODY else 0
        elif verdict > NO_SLOT:
            _remember_failure(failed_prompt, prompt, length_class, length)
            best = row if best == NOBODY else best
        closed = best != NOBODY and skips[best] + passed >= view.max_skips
    return taken, best, passed


@kernel
def walk_pairs(
    view: View,
    prompts: IntArray,
    classes: IntArray,
    lengths: IntArray,
    skips: IntArray,
    rows: IntArray,
    positions: IntArray,
    verdicts: IntArray,
    released: IntArray,
    chosen: IntArray,
) -> tuple[int, int, int]:
    """Take each pair (row of the queue, position of a device) in turn unless its row is taken.

    Fills and returns the same as `walk_rows`. While the best held row reserves the devices, only its own later
    pairs are tried.
    """
    is_taken = np.zeros(len(prompts), dtype=np.bool_)
    numbers, slots = view.numbers, 0
    # The shortest prompt that was not safe, by device and class: batches only fill up, so a longer one is not either.
    unsafe_prompt = np.full((len(numbers), view.residual.shape[0]), ENDLESS)
    for d in range(len(numbers)):
        slots += numbers[d, FREE]
    taken, best, passed = 0, NOBODY, 0
    for k in range(len(rows)):
        row, d = rows[k], positions[k]
        reserved = best != NOBODY and skips[best] + passed >= view.max_skips
        verdicts[k] = NO_SLOT if slots <= 0 else BEHIND
        if slots <= 0:
            continue
        if is_taken[row] or (reserved and row != best):
            continue
        prompt, length_class, length = prompts[row], classes[row], lengths[row]
        verdicts[k] = startable(numbers, d, prompt, length)
        if verdicts[k] == RELEASED and length == 0 and unsafe_prompt[d, length_class] <= prompt:
            verdicts[k] = KV_FUTURE
        elif verdicts[k] == RELEASED:
            verdicts[k] = judge(view, d, prompt, length_class, length)
            if verdicts[k] == KV_FUTURE and length == 0:
                unsafe_prompt[d, length_class] = prompt
        if verdicts[k] == RELEASED:
            add(view, d, prompt, length_class, length)
            is_taken[row] = True
            released[taken], chosen[taken] = k, numbers[d, DEVICE]
            taken, slots = taken + 1, slots - 1
            if row == best:
                best, passed = NOBODY, 0
            elif best != NOBODY:
                passed += 1
        elif best == NOBODY and verdicts[k] > NO_SLOT:
            best = row
    return taken, best, passed
