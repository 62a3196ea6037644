"""The compiled decision against a twin in plain Python, written from its description."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.core.state import RoutingState
from bidroute.policies.admission import Admission
from bidroute.policies.admission_kernels import (
    BEHIND,
    KV_FUTURE,
    KV_NOW,
    NEVER_HERE,
    NO_SLOT,
    NO_TOKENS,
    RELEASED,
    View,
    gaps_between_ends,
)
from bidroute.policies.alternatives_kernels import Choice
from bidroute.policies.bid_kernels import rank_by_best_device
from bidroute.policies.bids import Bidding, Bids, expected_tokens
from bidroute.policies.release_kernels import (
    FOR_LATER,
    FULLER_TILT,
    PRICED_OUT,
    REASONS,
    Limits,
    best_first,
    release,
)
from bidroute.pricing.prices import ShadowPrices
from tests.policies.admission_twins import Batch, Member, blocks, judge
from tests.policies.states import state

KV_HELD = (NEVER_HERE, KV_NOW, KV_FUTURE)
SEEDS = st.integers(0, 2**32 - 1)


def fullness(batch: Batch) -> float:
    held = sum(blocks(member.size, batch.block) for member in batch.members)
    return len(batch.members) / max(batch.slots, len(batch.members)) + held / max(batch.capacity, 1)


class Twin:
    """One decision, step by step, over batches that are plain lists."""

    def __init__(
        self,
        waiting: RoutingState,
        batches: list[Batch],
        bids: Bids,
        view: View,
        spare: int,
        offered: int,
        behind_s: np.ndarray,
        tokens: np.ndarray,
    ) -> None:
        self.queue, self.batches, self.bids, self.view = waiting.queue, batches, bids, view
        self.n, self.fleet = len(waiting.queue), range(len(batches))
        self.slots = sum(max(batch.slots - len(batch.members), 0) for batch in batches)
        self.spare, self.offered, self.behind_s = spare, offered, behind_s
        self.tokens = tokens
        self.gap_s = gaps_between_ends(view, waiting.fleet.period_s)
        self.released: dict[int, int] = {}
        self.verdicts: dict[int, int] = {}
        self.turned_down: set[int] = set()
        self.skips = 0

    def request(self, row: int) -> tuple[int, int, int]:
        queue = self.queue
        return int(queue.prompt_tokens[row]), int(queue.length_class[row]), int(queue.exact_tokens[row])

    def take(self, row: int, d: int) -> None:
        prompt, length_class, exact = self.request(row)
        self.batches[d].take(prompt, length_class, exact)
        self.released[row] = d

    def pays(self, row: int, d: int) -> bool:
        return bool(self.bids.value[d, row] > 0 and self.bids.ratio[d, row] > -np.inf)

    def tilt(self, d: int) -> float:
        return 1 + FULLER_TILT * fullness(self.batches[d])

    def value_later(self, row: int, d: int, later_s: float) -> float:
        reward, value = self.bids.reward[d, row], self.bids.value[d, row]
        behind_s = self.behind_s[d, row]
        return reward * behind_s / (behind_s + later_s) - (reward - value)

    def ends_needed(self, row: int, d: int, answer: int) -> float:
        if answer not in (KV_NOW, KV_FUTURE):
            return 1.0
        members = self.batches[d].members
        held = sum(blocks(member.size, self.batches[d].block) for member in members)
        return max((self.request(row)[0] + self.tokens[row]) * len(members) / held, 1.0)

    def run(self) -> None:
        self.order = sorted(range(self.n), key=lambda row: (-self.bids.ratio[:, row].max(), self.queue.sequence[row]))
        if self.slots == 0:
            return
        best, passed, kept = -1, 0, set[int]()
        ahead = np.zeros(len(self.batches))
        for place, row in enumerate(self.order[: self.slots + self.spare]):
            if sum(d < len(self.batches) for d in self.released.values()) == self.slots:
                break
            wanted = [d for d in self.fleet if self.pays(row, d)]
            now = {d: self.bids.value[d, row] / self.tilt(d) for d in wanted}
            later: dict[int, float] = {}
            ends: dict[int, float] = {}
            verdict = -1
            while now and verdict != RELEASED:
                d = max(now, key=lambda d: (now[d], -d))
                soon = max(later, key=lambda d: (later[d], -d), default=None)
                if soon is not None and (later[soon], -soon) > (now[d], -d):
                    ahead[soon] += ends[soon]
                    self.released[row] = len(self.batches)
                    break
                del now[d]
                answer = BEHIND if d in kept else judge(self.batches[d], *self.request(row), self.view)
                verdict = answer if answer == RELEASED else max(verdict, answer)
                if answer == RELEASED:
                    self.take(row, d)
                    passed += best >= 0 and d < self.offered
                elif self.gap_s[d] < np.inf:
                    ends[d] = self.ends_needed(row, d, answer)
                    wait_s = self.gap_s[d] * (ahead[d] + ends[d] * (self.n - place))
                    later[d] = self.value_later(row, d, wait_s) / self.tilt(d)
            self.verdicts[row] = verdict
            if wanted and verdict != RELEASED:
                self.turned_down |= set(wanted)
                if best < 0 and verdict > NO_TOKENS:
                    best, kept_by_best = row, set(wanted)
            if best >= 0 and self.queue.skips[best] + passed >= self.view.max_skips:
                kept = kept_by_best
        self.skips = passed if best >= 0 else 0
        for d in self.fleet:
            if not self.batches[d].members:
                self.fill(d)

    def fill(self, d: int) -> None:
        for row in self.order:
            if row not in self.released and judge(self.batches[d], *self.request(row), self.view) == RELEASED:
                self.take(row, d)
                return

    def reason(self, row: int) -> int:
        if self.slots == 0:
            return NO_SLOT
        if not any(self.bids.value[d, row] > 0 for d in self.fleet):
            return PRICED_OUT
        verdict = self.verdicts.get(row, -1)
        untried = NO_SLOT if sum(d < len(self.batches) for d in self.released.values()) >= self.slots else BEHIND
        return untried if verdict == -1 else verdict

    def cut(self) -> list[int]:
        if self.slots == 0:
            return []
        if len(self.released) == self.n:
            return list(range(self.offered))
        roomy = [len(batch.members) < batch.slots and batch.has_tokens for batch in self.batches]
        free = [d for d in range(self.offered) if roomy[d]]
        return [d for d in free if self.bids.value[d].min() <= 0 and d not in self.turned_down]


def random_state(random: np.random.Generator) -> tuple[RoutingState, list[Batch]]:
    devices = [
        Device(
            "d",
            int(random.integers(1, 5)),
            int(random.integers(30, 300)),
            int(random.choice([1, 16])),
            period,
            token_budget=int(random.choice([0, 0, 20, 60])),
        )
        for period in random.choice([0.01, 0.02], int(random.integers(1, 4)))
    ]
    leases = [
        (int(random.integers(len(devices))), int(random.integers(0, 40)), int(random.integers(0, 9)), 0, 0)
        for _ in range(random.integers(0, 5))
    ]
    jobs = [
        (int(random.integers(0, 60)), int(random.integers(2)), int(random.choice([0, 0, 5, 40])))
        for _ in range(random.integers(1, 12))
    ]
    made = state(devices, jobs, leases, arrival_s=random.uniform(0, 5, len(jobs)).round().tolist())
    made.queue.skips[:] = random.integers(0, 3, len(jobs))
    batches = [Batch(d.kv_tokens // d.block_size * d.block_size, d.block_size, d.batch_slots) for d in devices]
    for d, prompt, decoded, length_class, exact in leases:
        batches[d].members.append(Member(prompt + decoded + 1, decoded, length_class, exact))
    for one, batch in zip(devices, batches, strict=True):
        batch.budget, batch.tokens = one.token_budget, one.token_budget - len(batch.members)
    return made, batches


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_a_decision_equals_its_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    waiting, batches = random_state(random)
    prices = ShadowPrices()
    prices.fit_fleet(len(batches))
    prices.slot_price[:] = random.choice([0.0, 0.002, 0.05]) * random.exponential(1.0, prices.slot_price.shape)
    prices.token_price[:] = random.choice([0.0, 0.05]) * random.exponential(1.0, prices.token_price.shape)
    pace_s = random.uniform(0.01, 0.02, len(batches))
    bidding = Bidding(Objective(), prices, float(random.choice([0.01, 1.0])), 4.0, pace_s)
    admission = Admission(risk_z=1.0, max_skips=int(random.integers(0, 4)))
    devices = np.arange(len(batches))
    admission.begin(waiting, devices)
    spare = int(random.choice([1, 48]))
    offered = int(random.integers(1, len(batches) + 1))
    while offered < len(batches) and any(not batch.members for batch in batches[offered:]):
        offered += 1  # an alternative runs something
    later_s = np.where(devices < offered, 0.0, 0.3)
    bids = bidding.bids(6.0, waiting, devices, later_s)
    rank_by_best_device(bids.reward, bids.value, bids.ratio)
    tokens = expected_tokens(waiting, prices, np.arange(len(waiting.queue)))
    behind_s = 4.0 + tokens * (pace_s - pace_s.min())[:, None] + later_s[:, None]
    twin = Twin(waiting, batches, bids, admission.view, spare, offered, behind_s, tokens)
    twin.run()
    skips, before = waiting.queue.skips.copy(), prices.snapshot()

    chosen, held = np.empty(20, dtype=np.int64), np.full(REASONS, 99)
    fields = bidding.terms(6.0, waiting), waiting.queue.columns(), prices.view(waiting), admission.view
    rows = release(*fields, Limits(10_000, spare, 0.5), Choice(devices, offered, later_s), chosen, held)

    assert dict(zip(rows.tolist(), chosen[rows].tolist(), strict=True)) == twin.released
    assert rows.tolist() == list(twin.released)
    assert held[FOR_LATER] == sum(d >= offered for d in twin.released.values())
    assert (waiting.queue.skips - skips).sum() == twin.skips
    reasons = [twin.reason(row) for row in range(twin.n) if row not in twin.released]
    # which part of the KV holds one is told without a look ahead where a shorter prompt has failed
    others = NO_SLOT, NO_TOKENS, BEHIND, PRICED_OUT
    together = [held[list(KV_HELD)].sum(), *(held[reason] for reason in others)]
    expected = [sum(reason in KV_HELD for reason in reasons)]
    expected += [reasons.count(reason) for reason in others]
    assert together == expected
    factor = np.ones(len(batches))
    factor[twin.cut()] = 0.5
    np.testing.assert_allclose(prices.slot_price, before.slot_price * factor[:, None])
    np.testing.assert_allclose(prices.token_price, before.token_price * factor[:, None])


@given(SEEDS, st.integers(1, 12))
def test_best_first_sorts_and_ties_go_by_entry(seed: int, keep: int) -> None:
    random = np.random.default_rng(seed)
    ratio, sequence = random.integers(0, 4, 12).astype(np.float64), random.permutation(12)
    assert (
        best_first(ratio, sequence, keep).tolist() == sorted(range(12), key=lambda k: (-ratio[k], sequence[k]))[:keep]
    )


@pytest.mark.parametrize("free", [0, 1])
def test_prices_hold_while_somebody_who_pays_is_turned_down(free: int) -> None:
    waiting = state([Device("d", 1 + free, 100)], [(60, 0, 5), (60, 0, 50)], [(0, 50, 0, 0, 60)], arrival_s=[0.0, 0.0])
    prices = ShadowPrices()
    prices.fit_fleet(1)
    prices.slot_price[:] = 0.06  # request 0 pays, request 1 does not
    admission, bidding = Admission(max_skips=9), Bidding(Objective(tail=0.0), prices, 1.0, 100.0, np.array([0.02]))
    admission.begin(waiting, [0])
    fields = bidding.terms(0.0, waiting), waiting.queue.columns(), prices.view(waiting), admission.view
    held = np.zeros(REASONS, dtype=np.int64)
    choice = Choice(np.array([0]), 1, np.zeros(1))
    release(*fields, Limits(100, 48, 0.5), choice, np.zeros(2, dtype=np.int64), held)
    assert prices.slot_price.max() == 0.06
    assert (held[NO_SLOT], held[KV_NOW], held[PRICED_OUT]) == ((0, 1, 1) if free else (2, 0, 0))


def test_gaps_between_ends_in_closed_form() -> None:
    # 10 and 40 periods left of 0.1 s: one ends in a period with probability 1/10 + 1/40
    leases = [(0, 5, 20, 0, 30), (0, 5, 0, 0, 40)]
    waiting = state([Device("d", 4, 1000, period_s=0.1), Device("e", 4, 1000)], [], leases)
    admission = Admission()
    admission.begin(waiting, [0, 1])
    assert gaps_between_ends(admission.view, waiting.fleet.period_s).tolist() == pytest.approx([0.8, np.inf])


def test_what_is_expected_of_a_request_of_unknown_length_is_its_mean_residual_life() -> None:
    waiting = state([Device("d", 4, 10_000, period_s=0.1)], [], [(0, 5, 50, 0, 0)])
    survival = waiting.lengths.survival[0]
    admission = Admission()
    admission.begin(waiting, [0])
    residual = survival[50:].sum() / survival[50]
    assert gaps_between_ends(admission.view, waiting.fleet.period_s)[0] == pytest.approx(0.1 * residual, rel=0.1)
