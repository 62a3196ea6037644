"""Compiled greedy walks over an ordered set of candidates, with the rule on overtaking (see `admission`)."""

from __future__ import annotations

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.policies.admission_kernels import (
    BEHIND,
    KV_FUTURE,
    KV_NOW,
    NEVER_HERE,
    NO_SLOT,
    RELEASED,
    Batches,
    add,
    judge,
    view,
)

EXACT_KINDS = 64  # four per doubling of an exact length, to 65 536 tokens
NOBODY = -1


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
def _busy(batches: Batches, speed: FloatArray, d: int) -> float:
    """How unattractive a device is: the fuller by slots or KV and the slower, the more."""
    slots = batches.free_slots[d] + batches.leases[d]
    full = batches.leases[d] / max(slots, 1) + batches.held_tokens[d] / max(batches.capacity[d], 1)
    return float((1.0 + full) / speed[batches.device[d]])


@kernel
def _move_back(by_busy: IntArray, busy: FloatArray, place: int) -> None:
    """Restore the order of devices after the one at `place` became busier; ties go to the earlier device."""
    d = by_busy[place]
    while place + 1 < len(by_busy):
        other = by_busy[place + 1]
        if busy[other] > busy[d] or (busy[other] == busy[d] and other > d):
            break
        by_busy[place] = other
        place += 1
    by_busy[place] = d


@kernel
def _most_free(batches: Batches) -> int:
    most = 0
    for d in range(len(batches.device)):
        if batches.free_slots[d] > 0:
            most = max(most, batches.capacity[d] - batches.held_tokens[d])
    return most


@kernel
def walk_rows(
    columns: IntArray,
    offset: IntArray,
    counts: IntArray,
    distance: IntArray,
    growth: FloatArray,
    residual: FloatArray,
    age_index: IntArray,
    numbers: IntArray,
    grids: FloatArray,
    exact: IntArray,
    safety: bool,
    risk: float,
    max_skips: int,
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
    """Offer each row of the queue in `order` to every device, the least busy first.

    Fills `verdicts` [len(order)], and for each of the k released its place in the order and its device. Returns k,
    the best row that was held (or NOBODY), and how many were taken past it.
    """
    now = view(
        columns,
        offset,
        counts,
        distance,
        growth,
        residual,
        age_index,
        numbers,
        grids,
        exact,
        safety,
        risk,
        max_skips,
    )
    batches = now.batches
    devices = len(batches.device)
    busy = np.array([_busy(batches, speed, d) for d in range(devices)])
    by_busy = np.argsort(busy, kind="mergesort")
    failed_prompt = np.full(EXACT_KINDS + residual.shape[0], np.iinfo(np.int64).max)
    slots, most_free = batches.free_slots.sum(), _most_free(batches)
    taken, best, passed = 0, NOBODY, 0
    for k in range(len(order)):
        if slots <= 0:
            verdicts[k:] = NO_SLOT
            break
        row = order[k]
        prompt, length_class, length = prompts[row], classes[row], lengths[row]
        if failed_prompt[_kind(length_class, length)] <= prompt:
            verdicts[k] = KV_NOW if prompt + 1 > most_free else KV_FUTURE
            continue
        verdict = NEVER_HERE
        for place in range(devices):
            d = by_busy[place]
            verdict = max(verdict, judge(now, d, prompt, length_class, length))
            if verdict == RELEASED:
                add(now, d, prompt, length_class, length)
                released[taken], chosen[taken] = k, batches.device[d]
                busy[d] = _busy(batches, speed, d)
                _move_back(by_busy, busy, place)
                break
        verdicts[k] = verdict
        if verdict == RELEASED:
            taken, slots, most_free = taken + 1, slots - 1, _most_free(batches)
            passed += 1 if best != NOBODY else 0
        elif verdict != NEVER_HERE:
            _remember_failure(failed_prompt, prompt, length_class, length)
            best = row if best == NOBODY else best
        if best != NOBODY and skips[best] + passed >= max_skips:
            verdicts[k + 1 :] = BEHIND
            break
    return taken, best, passed


@kernel
def walk_pairs(
    columns: IntArray,
    offset: IntArray,
    counts: IntArray,
    distance: IntArray,
    growth: FloatArray,
    residual: FloatArray,
    age_index: IntArray,
    numbers: IntArray,
    grids: FloatArray,
    exact: IntArray,
    safety: bool,
    risk: float,
    max_skips: int,
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
    now = view(
        columns,
        offset,
        counts,
        distance,
        growth,
        residual,
        age_index,
        numbers,
        grids,
        exact,
        safety,
        risk,
        max_skips,
    )
    is_taken = np.zeros(len(prompts), dtype=np.bool_)
    slots = now.batches.free_slots.sum()
    taken, best, passed = 0, NOBODY, 0
    verdicts[:] = BEHIND
    for k in range(len(rows)):
        if slots <= 0:
            verdicts[k:] = NO_SLOT
            break
        row, d = rows[k], positions[k]
        reserved = best != NOBODY and skips[best] + passed >= max_skips
        if is_taken[row] or (reserved and row != best):
            continue
        prompt, length_class, length = prompts[row], classes[row], lengths[row]
        verdicts[k] = judge(now, d, prompt, length_class, length)
        if verdicts[k] == RELEASED:
            add(now, d, prompt, length_class, length)
            is_taken[row] = True
            released[taken], chosen[taken] = k, now.batches.device[d]
            taken, slots = taken + 1, slots - 1
            if row == best:
                best, passed = NOBODY, 0
            elif best != NOBODY:
                passed += 1
        elif best == NOBODY and verdicts[k] > NO_SLOT:
            best = row
    return taken, best, passed


@kernel
def judge_one(
    columns: IntArray,
    offset: IntArray,
    counts: IntArray,
    distance: IntArray,
    growth: FloatArray,
    residual: FloatArray,
    age_index: IntArray,
    numbers: IntArray,
    grids: FloatArray,
    exact: IntArray,
    safety: bool,
    risk: float,
    max_skips: int,
    position: int,
    prompt: int,
    length_class: int,
    length: int,
) -> int:
    """The verdict on one candidate."""
    now = view(
        columns,
        offset,
        counts,
        distance,
        growth,
        residual,
        age_index,
        numbers,
        grids,
        exact,
        safety,
        risk,
        max_skips,
    )
    return judge(now, position, prompt, length_class, length)


@kernel
def add_one(
    columns: IntArray,
    offset: IntArray,
    counts: IntArray,
    distance: IntArray,
    growth: FloatArray,
    residual: FloatArray,
    age_index: IntArray,
    numbers: IntArray,
    grids: FloatArray,
    exact: IntArray,
    safety: bool,
    risk: float,
    max_skips: int,
    position: int,
    prompt: int,
    length_class: int,
    length: int,
) -> None:
    """One candidate joins."""
    now = view(
        columns,
        offset,
        counts,
        distance,
        growth,
        residual,
        age_index,
        numbers,
        grids,
        exact,
        safety,
        risk,
        max_skips,
    )
    add(now, position, prompt, length_class, length)
