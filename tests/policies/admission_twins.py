"""Plain-Python twins of the admission kernels, written from the definitions and without any of their shortcuts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bidroute.policies.admission_kernels import (
    BEHIND,
    KV_FUTURE,
    KV_NOW,
    NEVER_HERE,
    NO_SLOT,
    RELEASED,
    View,
)


@dataclass
class Member:
    """One request of a batch: KV tokens now, output tokens made, class, exact output tokens (0: unknown)."""

    size: int
    age: int
    length_class: int
    exact: int


@dataclass
class Batch:
    """One device."""

    capacity: int
    block: int
    slots: int
    speed: float = 1.0
    members: list[Member] = field(default_factory=list)
    grid: bool = False  # once a request of unknown length was judged, all are judged on the grid


def blocks(tokens: int, block: int) -> int:
    return math.ceil(tokens / block) * block


def exact_safe(batch: Batch, new: Member) -> bool:
    """Simulate the candidate's life period by period."""
    members = [*batch.members, new]
    left = [max(m.exact - m.age, 1) for m in members]
    for h in range(left[-1]):
        held = sum(blocks(m.size + h, batch.block) for m, n in zip(members, left, strict=True) if h < n)
        if held > batch.capacity:
            return False
    return True


def grid_safe(batch: Batch, new: Member, view: View) -> bool:
    waste = 0.5 * (batch.block - 1)
    for b in range(len(view.distance)):
        if 0 < new.exact <= view.distance[b]:
            return True
        mean = variance = 0.0
        for m in [*batch.members, new]:
            tokens = m.size + waste + view.growth[b]
            if m.exact > 0:
                left = max(m.exact - m.age, 1)
                alive = 1.0 if view.distance[b] < left else 0.0
                tokens = m.size + waste + min(view.growth[b], left - 1)
            else:
                alive = view.residual[m.length_class, view.age_index[m.age], b]
            mean += alive * tokens
            variance += alive * (1 - alive) * tokens**2
        if mean + math.sqrt(view.risk * variance) > batch.capacity * (1 + 1e-12):
            return False
    return True


def judge(batch: Batch, prompt: int, length_class: int, exact: int, view: View) -> int:
    if blocks(prompt + max(exact, 1), batch.block) > batch.capacity:
        return NEVER_HERE
    if len(batch.members) >= batch.slots:
        return NO_SLOT
    held = sum(blocks(m.size, batch.block) for m in batch.members)
    if held + blocks(prompt + 1, batch.block) > batch.capacity:
        return KV_NOW
    if not view.safety or not batch.members:
        return RELEASED
    new = Member(prompt + 1, 0, length_class, exact)
    batch.grid = batch.grid or exact == 0 or any(m.exact == 0 for m in batch.members)
    safe = grid_safe(batch, new, view) if batch.grid else exact_safe(batch, new)
    return RELEASED if safe else KV_FUTURE


def busy(batch: Batch) -> float:
    held = sum(blocks(m.size, batch.block) for m in batch.members)
    slots = max(batch.slots, len(batch.members))
    return (1 + len(batch.members) / slots + held / max(batch.capacity, 1)) / batch.speed


def walk(
    batches: list[Batch], order: list[tuple[int, int, int, int]], view: View
) -> tuple[list[int], list[int | None], int]:
    """`order`: (prompt, class, exact, skips). Verdicts, devices, and how many were taken past the best held one."""
    verdicts: list[int] = []
    chosen: list[int | None] = []
    best_skips, passed = -1, 0
    best_peak, kept = 0, False
    for prompt, length_class, exact, skips in order:
        chosen.append(None)
        if all(len(batch.members) >= batch.slots for batch in batches):
            verdicts.append(NO_SLOT)
            continue
        verdict = NEVER_HERE
        kept = kept or (best_skips >= 0 and best_skips + passed >= view.max_skips)
        for d in sorted(range(len(batches)), key=lambda d: (busy(batches[d]), d)):
            if kept and blocks(best_peak, batches[d].block) <= batches[d].capacity:
                verdict = BEHIND
                continue
            answer = judge(batches[d], prompt, length_class, exact, view)
            verdict = answer if answer == RELEASED else max(verdict, answer)
            if verdict == RELEASED:
                batches[d].members.append(Member(prompt + 1, 0, length_class, exact))
                batches[d].grid = batches[d].grid or exact == 0
                chosen[-1] = d
                passed += best_skips >= 0
                break
        if NO_SLOT < verdict < RELEASED and best_skips < 0:
            best_skips, best_peak = skips, prompt + max(exact, 1)
        verdicts.append(verdict)
    return verdicts, chosen, passed
