"""Plain-Python twins of the admission kernels, written from the definitions and without any of their shortcuts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bidroute.policies.admission_kernels import (
    BEHIND,
    KV_FUTURE,
    KV_NOW,
    LEAST_CHUNK,
    NEVER_HERE,
    NO_SLOT,
    NO_TOKENS,
    RELEASED,
    View,
)


@dataclass
class Member:
    """One request of a batch: KV tokens now, output tokens made, class, exact output tokens (0: unknown), and the
    periods that its prompt takes after this one."""

    size: int
    age: int
    length_class: int
    exact: int
    delay: int = 0

    def left(self) -> int:
        """Periods it has left, where its length is known."""
        return max(self.exact - self.age, 1) + self.delay


@dataclass
class Batch:
    """One device."""

    capacity: int
    block: int
    slots: int
    speed: float = 1.0
    members: list[Member] = field(default_factory=list)
    grid: bool = False  # once a request of unknown length was judged, all are judged on the grid
    budget: int = 0  # tokens per iteration, 0 for none, and
    tokens: int = 0  # what is left of the next one's

    def periods(self, tokens: int) -> int:
        """Iterations that this many tokens of prompts take while all slots decode."""
        slots = max(self.slots, len(self.members))
        chunk = max(self.budget - slots, int(LEAST_CHUNK * self.budget), 1)
        return math.ceil(max(tokens, 0) / chunk) if self.budget else 0

    def newcomer(self, prompt: int, length_class: int, exact: int) -> Member:
        """The candidate, as a member."""
        return Member(prompt + 1, 0, length_class, exact, self.periods(prompt - self.tokens))

    def take(self, prompt: int, length_class: int, exact: int) -> None:
        """The candidate joins."""
        self.members.append(self.newcomer(prompt, length_class, exact))
        self.grid = self.grid or exact == 0
        self.tokens -= max(prompt, 1)

    @property
    def has_tokens(self) -> bool:
        """Whether the next iteration has room in its budget."""
        return self.budget == 0 or self.tokens > 0


def blocks(tokens: int, block: int) -> int:
    return math.ceil(tokens / block) * block


def exact_safe(batch: Batch, new: Member) -> bool:
    """Simulate the candidate's life period by period."""
    members = [*batch.members, new]
    left = [m.left() for m in members]
    for h in range(left[-1]):
        held = sum(blocks(m.size + h, batch.block) for m, n in zip(members, left, strict=True) if h < n)
        if held > batch.capacity:
            return False
    return True


def grid_safe(batch: Batch, new: Member, view: View) -> bool:
    waste = 0.5 * (batch.block - 1)
    for b in range(len(view.distance)):
        if new.exact > 0 and new.left() <= view.distance[b]:
            return True
        mean = variance = most = 0.0
        for m in [*batch.members, new]:
            tokens = m.size + waste + view.growth[b]
            most += blocks(m.size, batch.block) + batch.block - 1 + view.growth[b]
            if m.exact > 0:
                alive = 1.0 if view.distance[b] < m.left() else 0.0
                tokens = m.size + waste + min(view.growth[b], m.left() - 1)
            else:
                at = view.age_index[max(view.distance[b] - m.delay, 0)] if m.delay else b
                alive = view.residual[m.length_class, view.age_index[m.age], at]
            mean += alive * tokens
            variance += alive * (1 - alive) * tokens**2
        if min(mean + math.sqrt(view.risk * variance), most) > batch.capacity * (1 + 1e-12):
            return False
    return True


def judge(batch: Batch, prompt: int, length_class: int, exact: int, view: View) -> int:
    if blocks(prompt + max(exact, 1), batch.block) > batch.capacity:
        return NEVER_HERE
    if len(batch.members) >= batch.slots:
        return NO_SLOT
    if not batch.has_tokens:
        return NO_TOKENS
    held = sum(blocks(m.size, batch.block) for m in batch.members)
    if held + blocks(prompt + 1, batch.block) > batch.capacity:
        return KV_NOW
    if not view.safety or not batch.members:
        return RELEASED
    new = batch.newcomer(prompt, length_class, exact)
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
                batches[d].take(prompt, length_class, exact)
                chosen[-1] = d
                passed += best_skips >= 0
                break
        if NO_TOKENS < verdict < RELEASED and best_skips < 0:
            best_skips, best_peak = skips, prompt + max(exact, 1)
        verdicts.append(verdict)
    return verdicts, chosen, passed
