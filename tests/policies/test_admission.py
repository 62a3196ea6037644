import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.lengths import LengthModel
from bidroute.core.requests import Request
from bidroute.errors import ConfigError
from bidroute.policies import admission_kernels
from bidroute.policies.admission import Admission, ResidualTables, distance_grid
from bidroute.policies.admission_kernels import (
    BEHIND,
    KV_FUTURE,
    KV_NOW,
    NEVER_HERE,
    NO_SLOT,
    NO_TOKENS,
    RELEASED,
)
from bidroute.policies.base import Hold
from tests.policies.admission_twins import Batch, Member, walk
from tests.policies.states import state

BIG = 1_000_000
lease = st.tuples(
    st.integers(0, 2), st.integers(0, 60), st.integers(0, 30), st.integers(0, 1), st.sampled_from([0, 31, 40, 200])
)
candidate = st.tuples(st.integers(0, 80), st.integers(0, 1), st.sampled_from([0, 0, 1, 5, 60, 300]))
device = st.builds(
    Device,
    st.just("d"),
    st.integers(1, 8),
    st.integers(20, 1200),
    st.sampled_from([1, 3, 16]),
    speed=st.sampled_from([1.0, 2.0]),
    token_budget=st.sampled_from([0, 0, 6, 30, 90]),
)


def known(items: list[tuple[int, ...]], all_known: bool) -> list[tuple[int, ...]]:
    return [(*item[:-1], item[-1] or 35) for item in items] if all_known else items


@settings(max_examples=250, deadline=None)
@given(
    devices=st.lists(device, min_size=1, max_size=3),
    leases=st.lists(lease, max_size=10),
    waiting=st.lists(candidate, max_size=12),
    skips=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    all_known=st.booleans(),
    safety=st.booleans(),
    risk_z=st.sampled_from([0.0, 1.0, 2.5]),
    max_skips=st.sampled_from([0, 1, 3, BIG]),
    conservative=st.booleans(),
    prefilling=st.lists(lease, max_size=3),
)
def test_walk_agrees_with_its_twin(
    devices, leases, waiting, skips, all_known, safety, risk_z, max_skips, conservative, prefilling
) -> None:
    leases = known([(d % len(devices), *rest) for d, *rest in leases], all_known)
    prefilling = known([(d % len(devices), p, min(p, n), *rest) for d, p, n, *rest in prefilling], all_known)
    waiting = known(waiting, all_known)
    now = state(devices, waiting, leases, prefilling=prefilling)
    now.queue.skips[:] = skips[: len(waiting)]
    admission = Admission(safety=safety, risk_z=risk_z, max_skips=max_skips, conservative=conservative)
    admission.begin(now, range(len(devices)))
    order = np.arange(len(waiting))[::-1].copy()
    walked = admission.walk(now.queue, order)

    batches = [Batch(d.kv_tokens // d.block_size * d.block_size, d.block_size, d.batch_slots, d.speed) for d in devices]
    for d, prompt, decoded, length_class, exact in leases:
        batches[d].members.append(Member(prompt + decoded + 1, decoded, length_class, exact))
    for d, batch in enumerate(batches):
        mine = [item for item in prefilling if item[0] == d]
        rest = sum(prompt - processed for _, prompt, processed, _, _ in mine)
        batch.budget = devices[d].token_budget
        batch.tokens = batch.budget - len(batch.members) - rest
        batch.members += [Member(prompt + 1, 0, length_class, exact) for _, prompt, _, length_class, exact in mine]
        for member in batch.members[len(batch.members) - len(mine) :]:
            member.delay = max(batch.periods(rest) - 1, 0)
    ordered = [(*waiting[k], skips[k]) for k in order]
    verdicts, chosen, passed = walk(batches, ordered, admission.view)

    released = dict(zip(walked.released.tolist(), walked.devices.tolist(), strict=True))
    assert [released.get(k) for k in range(len(order))] == chosen
    assert walked.skips == passed
    # Which capacity holds one is told without trying where a smaller one failed before, so only these must agree.
    certain = [RELEASED, BEHIND]
    assert [v if v in certain else None for v in walked.verdicts] == [v if v in certain else None for v in verdicts]


def walk_on_one(kv_tokens: int, waiting, leases=(), *, slots: int = 8, block_size: int = 1, **options):
    now = state([Device("a", slots, kv_tokens, block_size)], waiting, [(0, *rest) for rest in leases])
    admission = Admission(risk_z=0.0, **options)
    admission.begin(now, [0])
    return admission.walk(now.queue, np.arange(len(now.queue)))


class TestInvariant11:
    """Small exact cases: a request of prompt 1 and o output tokens peaks at 1 + o tokens."""

    def test_peaks_6_and_6_in_10_go_one_at_a_time(self) -> None:
        walked = walk_on_one(10, [(1, 0, 5), (1, 0, 5)])
        assert walked.verdicts.tolist() == [RELEASED, KV_FUTURE]

    def test_peaks_5_and_5_in_10_go_together(self) -> None:
        assert walk_on_one(10, [(1, 0, 4), (1, 0, 4)]).verdicts.tolist() == [RELEASED, RELEASED]

    def test_peak_11_in_10_never_runs(self) -> None:
        assert walk_on_one(10, [(1, 0, 10), (1, 0, 4)]).verdicts.tolist() == [NEVER_HERE, RELEASED]

    def test_peaks_that_never_coincide_go_together(self) -> None:
        # Prompt 6 for 2 periods peaks at 8 in period 1; prompt 0 for 8 periods peaks at 8 in period 7: 16 > 10.
        assert walk_on_one(10, [(6, 0, 2), (0, 0, 8)]).verdicts.tolist() == [RELEASED, RELEASED]
        assert walk_on_one(10, [(6, 0, 3), (0, 0, 8)]).verdicts.tolist() == [RELEASED, KV_FUTURE]

    def test_a_lease_that_is_about_to_end_leaves_its_room(self) -> None:
        assert walk_on_one(10, [(1, 0, 8)], [(5, 2, 0, 3)]).verdicts.tolist() == [RELEASED]
        assert walk_on_one(10, [(1, 0, 8)], [(5, 0, 0, 3)]).verdicts.tolist() == [KV_FUTURE]


def test_startable_counts_slots_blocks_and_what_waits_in_the_engine() -> None:
    assert walk_on_one(100, [(1, 0, 0)], [(1, 0, 0, 0)], slots=1).verdicts.tolist() == [NO_SLOT]
    # 48 tokens in blocks of 16: two leases of 17 tokens hold 2 blocks each where 34 tokens would leave 14.
    assert walk_on_one(48, [(13, 0, 0)], [(16, 0, 0, 0)], block_size=16, safety=False).verdicts.tolist() == [RELEASED]
    assert walk_on_one(48, [(16, 0, 0)], [(16, 0, 0, 0)], block_size=16, safety=False).verdicts.tolist() == [KV_NOW]
    now = state([Device("a", 4, 30)], [(10, 0, 0)])
    now.fleet.open(Request(99, 0.0, 20), 0, 0)
    admission = Admission(safety=False)
    admission.begin(now, [0])
    assert admission.judge(0, 10, 0) == KV_NOW
    assert admission.judge(0, 8, 0) == RELEASED


def test_startable_counts_the_token_budget() -> None:
    # 40 tokens per iteration, of which 2 decode and 28 are the rest of a prompt: 10 are left for whoever comes next
    now = state(
        [Device("a", 8, 1000, token_budget=40)],
        [(30, 0, 5), (1, 0, 5)],
        [(0, 5, 1, 0, 9), (0, 5, 2, 0, 9)],
        prefilling=[(0, 60, 32, 0, 9)],
    )
    admission = Admission()
    admission.begin(now, [0])
    walk = admission.walk(now.queue, np.arange(2))
    assert walk.verdicts.tolist() == [RELEASED, NO_TOKENS]
    assert walk.held() == {Hold.TOKENS: 1}
    assert walk.skipped_row == -1  # nobody was passed over: there was no room for anybody


def test_a_prompt_that_takes_several_periods_ends_as_many_later() -> None:
    # 20 tokens of a prompt per period while all 4 slots decode. The lease holds 10 + h tokens for 7 periods.
    def verdict(kv_tokens: int, prompt: int) -> int:
        devices = [Device("a", 4, kv_tokens, token_budget=24)]
        now = state(devices, [(prompt, 0, 1)], [(0, 9, 0, 0, 7)])
        admission = Admission(risk_z=0.0)
        admission.begin(now, [0])
        return int(admission.walk(now.queue, np.arange(1)).verdicts[0])

    # a prompt of 23 fits the rest of the first budget: its KV is 24 beside 10
    assert verdict(34, 23) == RELEASED
    # one of 24 needs the next period too: in it both have grown by one, 26 beside 11
    assert verdict(37, 24) == RELEASED
    assert verdict(36, 24) == KV_FUTURE


def test_an_empty_device_takes_one_that_is_not_safe_but_not_two() -> None:
    # 990 of 1000 tokens: expected to outgrow the device, yet nothing would make it safer.
    assert walk_on_one(1000, [(990, 0, 0), (5, 0, 0)]).verdicts.tolist() == [RELEASED, KV_FUTURE]


def test_a_larger_risk_margin_admits_less() -> None:
    taken = []
    for risk_z in (0.0, 1.0, 3.0):
        now = state([Device("a", 256, 20_000)], [(100, 0, 0)] * 256)
        admission = Admission(risk_z=risk_z)
        admission.begin(now, [0])
        taken.append(len(admission.walk(now.queue, np.arange(256)).released))
    assert taken[0] > taken[1] > taken[2] > 10


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [(9_000, RELEASED), (9_850, RELEASED), (9_950, KV_FUTURE), (10_000, KV_NOW)],
)
def test_what_fits_even_if_nobody_ends_is_safe_whatever_the_deviation(candidate: int, verdict: int) -> None:
    """Three of 30 000 tokens that end within 29 periods, but nobody knows when: z·sd alone is half of the device, where
    the four of them grow by 116 tokens at most."""
    lengths = LengthModel(1, 4096)
    for tokens in range(1, 30):
        for _ in range(20):
            lengths.observe(0, tokens)
    lengths.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    now = replace(state([Device("a", 8, 100_000)], [(candidate, 0, 0)], [(0, 29_999, 0, 0, 0)] * 3), lengths=lengths)
    admission = Admission(risk_z=2.5)
    admission.begin(now, [0])
    assert admission.walk(now.queue, np.arange(1)).verdicts.tolist() == [verdict]


def test_the_conservative_grid_admits_less_but_not_much_less() -> None:
    taken = []
    for conservative in (False, True):
        now = state([Device("a", 256, 20_000)], [(100, 0, 0)] * 256)
        admission = Admission(conservative=conservative)
        admission.begin(now, [0])
        taken.append(len(admission.walk(now.queue, np.arange(256)).released))
    assert 0.9 * taken[0] < taken[1] <= taken[0]


def test_single_steps_agree_with_the_walk() -> None:
    waiting = [(30, 0, 0), (20, 1, 0), (40, 0, 50), (10, 1, 9), (60, 0, 0)]
    now = state([Device("a", 4, 700)], waiting, [(0, 100, 5, 0, 0)])
    admission = Admission(max_skips=BIG)
    admission.begin(now, [0])
    expected = admission.walk(now.queue, np.arange(5)).verdicts.tolist()
    admission.begin(now, [0])
    verdicts = []
    for prompt, length_class, exact in waiting:
        verdicts.append(admission.judge(0, prompt, length_class, exact))
        if verdicts[-1] == RELEASED:
            admission.add(0, prompt, length_class, exact)
    assert verdicts == expected
    assert admission.free_slots.tolist() == [3 - expected.count(RELEASED)]


def test_reasons_are_counted() -> None:
    held = walk_on_one(100, [(150, 0, 0), (90, 0, 0), (60, 0, 0), (3, 0, 0)], [(20, 0, 0, 0)], max_skips=BIG).held()
    assert held == {Hold.KV_FUTURE: 3, Hold.KV_NOW: 1}
    assert walk_on_one(100, [(90, 0, 0), (1, 0, 0)], [(20, 0, 0, 0)], max_skips=0).held() == {
        Hold.KV_NOW: 1,
        Hold.ORDER: 1,
    }


def test_overtaking_stops_when_the_skips_are_used_up() -> None:
    waiting = [(90, 0, 1)] + [(1, 0, 1)] * 6
    walked = walk_on_one(100, waiting, [(30, 0, 0, 100)], max_skips=4)
    assert walked.verdicts.tolist() == [KV_NOW] + [RELEASED] * 4 + [BEHIND] * 2
    assert (walked.skipped_row, walked.skips) == (0, 4)


def test_one_that_waits_for_its_device_keeps_no_other() -> None:
    now = state([Device("large", 4, 100), Device("small", 4, 20)], [(50, 0, 5)] + [(2, 0, 5)] * 3, [(0, 70, 0, 0, 20)])
    admission = Admission(max_skips=1)
    admission.begin(now, [0, 1])
    walked = admission.walk(now.queue, np.arange(4))
    assert walked.verdicts.tolist() == [KV_NOW, RELEASED, RELEASED, BEHIND]
    assert walked.devices.tolist() == [1, 1]


def test_a_device_over_its_new_capacity_does_not_close_the_others() -> None:
    now = state([Device("a", 4, 100), Device("b", 4, 100)], [(1, 0, 1)] * 2, [(0, 1, 0, 0, 9)] * 4)
    now.fleet.resize(0, 1, 100)
    admission = Admission()
    admission.begin(now, [0, 1])
    assert admission.walk(now.queue, np.arange(2)).devices.tolist() == [1, 1]


def test_the_least_busy_and_the_faster_device_comes_first() -> None:
    devices = [Device("a", 4, 100), Device("b", 4, 100), Device("c", 4, 100, speed=3.0)]
    now = state(devices, [(1, 0, 5)] * 3, [(0, 1, 0, 0, 9)])
    admission = Admission()
    admission.begin(now, [0, 1])
    assert admission.walk(now.queue, np.arange(3)).devices.tolist() == [1, 0, 1]
    admission.begin(now, [0, 1, 2])
    assert admission.walk(now.queue, np.arange(3)).devices.tolist() == [2, 2, 2]


@pytest.mark.parametrize("horizon", [2, 10, 100, 32_768])
def test_the_grid_rises_from_zero_to_the_horizon_in_at_most_64_points(horizon: int) -> None:
    grid = distance_grid(horizon)
    assert grid[0] == 0
    assert len(grid) <= 64
    assert np.all(np.diff(grid) > 0)
    assert grid[-1] < horizon
    assert np.all(grid[1:] <= np.maximum(grid[:-1] + 1, 1.35 * grid[:-1] + 1))
    assert horizon <= 1.35 * grid[-1] + 2


def test_residuals_are_survival_ratios_and_follow_the_model() -> None:
    model, residuals = LengthModel(classes=2), ResidualTables()
    for _ in range(2):
        tables = residuals.refresh(model)
        for a in (0, 5, 40, len(tables.distance) - 1):
            for b in (0, 3, 30, len(tables.distance) - 1):
                age, ahead = int(tables.distance[a]), int(tables.distance[b])
                now = model.survival[1, age]
                then = model.survival[1, age + ahead] if age + ahead <= model.horizon_tokens else 0.0
                expected = then / now if now > 0 and b > 0 else float(b == 0)
                assert tables.residual[1, a, b] == pytest.approx(expected)
        for _ in range(50):
            model.observe(1, 20)
        model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert tables.distance[tables.age_index[0]] == 0
    assert np.all(np.diff(tables.age_index) >= 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"risk_z": -1.0}, "risk_z=-1.0; expected 0 or more"),
        ({"risk_z": math.nan}, "risk_z=nan"),
        ({"max_skips": -1}, "max_skips=-1; expected 0"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Admission(**options)


def test_what_is_learned_while_tables_are_filled_is_in_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update in another thread learns while a decision refreshes: nothing may count as seen that was not."""
    model, tables = LengthModel(1, 200), ResidualTables()
    first = tables.refresh(model)
    before, fill = first.residual.copy(), admission_kernels.fill_residuals

    def fill_while_another_learns(*arrays: object) -> None:
        fill(*arrays)
        teach(model, 150)

    teach(model, 3)
    with monkeypatch.context() as patch:
        patch.setattr(admission_kernels, "fill_residuals", fill_while_another_learns)
        tables.refresh(model)
    assert np.array_equal(tables.refresh(model).residual, ResidualTables().refresh(model).residual)
    assert np.array_equal(first.residual, before)  # who reads the old ones goes on reading what they were


def teach(model: LengthModel, tokens: int) -> None:
    for _ in range(30):
        model.observe(0, tokens)
    model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
