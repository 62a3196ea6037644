"""Every price kernel against a twin in plain Python that goes period by period."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.pricing.price_kernels import (
    exact_column,
    expected_use_of_devices,
    mixed_columns,
    projected_step,
)
from tests.pricing.random_case import HORIZON_TOKENS, Case, demand

SEEDS = st.integers(0, 2**32 - 1)


def exact(output_tokens: int, start: int, edges: list[int]) -> tuple[list[float], list[float]]:
    slots, growth = np.full((2, len(edges) - 1), np.nan)
    exact_column(output_tokens, start, np.array(edges), slots, growth)
    return slots.tolist(), growth.tolist()


# --- exact_column ---------------------------------------------------------------------------------------------------


def test_exact_column_in_closed_form() -> None:
    # five periods from now: 1 + 2 tokens in the first bucket, 3 + 4 + 5 in the second
    assert exact(5, 0, [0, 2, 10]) == ([2, 3], [3, 12])
    # two periods later it has its first token in the second bucket
    assert exact(5, 2, [0, 2, 10]) == ([0, 5], [0, 15])
    # what lies beyond the horizon belongs to the last bucket
    assert exact(5, 0, [0, 1, 2]) == ([1, 4], [1, 14])


@given(st.integers(1, 60), st.integers(0, 30), SEEDS)
def test_exact_column_equals_a_sum_over_periods(output_tokens: int, start: int, seed: int) -> None:
    case = Case(seed)
    slots, growth = np.zeros((2, case.grid.buckets))
    for age in range(output_tokens):
        slots[case.bucket(start + age)] += 1.0
        growth[case.bucket(start + age)] += age + 1.0
    assert exact(output_tokens, start, case.edges.tolist()) == (slots.tolist(), growth.tolist())


# --- demand_at_prices -----------------------------------------------------------------------------------------------


def demand_twin(case: Case, decay_s: float, devices: np.ndarray) -> tuple[int, np.ndarray]:
    taken, demands = 0, np.zeros((3, *case.slot_price.shape))
    capacities = case.batch_slots, case.kv_tokens, np.maximum(case.token_budget, 1)
    rows = list(zip((case.slot_price, case.kv_price, case.token_price), capacities, strict=True))
    for i in range(len(case.prompt_tokens)):
        offers = []
        for start in case.starts[case.starts >= case.earliest[i]]:
            for g in devices:
                if case.prompt_tokens[i] + 1 > case.kv_tokens[g]:
                    continue
                columns = case.mixed(i, start, g)
                completion_s = (start - case.earliest[i] + case.tokens(i) + case.delay(i, g)) * case.period_s[g]
                cost = sum(c @ price[g] / most[g] for c, (price, most) in zip(columns, rows, strict=True))
                offers.append((case.reward[i] * decay_s / (decay_s + completion_s) - cost, g, columns))
        value, g, columns = max(offers, key=lambda offer: offer[0], default=(0.0, 0, None))
        if value <= 0.0:
            continue
        taken += 1
        for row, column, (_, capacity) in zip(demands, columns, rows, strict=True):
            row[g] += case.weight[i] * column / (capacity[g] * case.grid.widths_periods)
    return taken, demands


@given(SEEDS, st.floats(0.1, 100.0), st.booleans())
def test_demand_is_that_of_each_sample_at_its_best(seed: int, decay_s: float, mixed: bool) -> None:
    case = Case(seed)
    if mixed:
        case.mix()
    devices = np.flatnonzero(case.random.integers(0, 3, case.devices))
    taken, demands = demand(case, decay_s, devices)
    expected = demand_twin(case, decay_s, devices)
    assert taken == expected[0]
    np.testing.assert_allclose(demands, expected[1], atol=1e-12)


def test_who_fits_nowhere_is_charged_to_no_device() -> None:
    case = Case(3)
    case.prompt_tokens[:] = case.kv_tokens.max()
    taken, demands = demand(case, 10.0, np.arange(case.devices))
    assert taken == 0
    assert demands.max() == 0.0


def test_at_high_prices_nobody_buys() -> None:
    case = Case(4)
    case.slot_price[:] = 1e9
    assert demand(case, 10.0, np.arange(case.devices))[0] == 0


# --- mixed_columns --------------------------------------------------------------------------------------------------


@given(SEEDS)
def test_columns_of_many_starts_are_those_of_each_and_the_others_are_left_alone(seed: int) -> None:
    case = Case(seed)
    case.mix()
    at = np.ndindex(len(case.prompt_tokens), case.devices, len(case.starts))
    request, device, start = np.array(list(at)).T
    use, delay = np.full((len(request), 3, case.grid.buckets), 9.0), np.full(len(request), -1)
    mixed_columns(
        request,
        device,
        start,
        case.token_budget,
        np.maximum(case.token_budget - case.open_leases, 1),
        case.prompt_tokens,
        case.length_class,
        case.exact_tokens,
        case.columns.slots,
        case.columns.growth,
        case.starts,
        case.edges,
        use,
        delay,
    )
    for k, (i, g, u) in enumerate(zip(request, device, start, strict=True)):
        if case.token_budget[g] > 0:
            np.testing.assert_allclose(use[k], case.mixed(i, case.starts[u], g), rtol=1e-9, atol=1e-9)
            assert delay[k] == case.delay(i, g)
        else:
            assert np.all(use[k] == 9.0)
            assert delay[k] == -1


# --- expected_use_of_devices ----------------------------------------------------------------------------------------


@given(SEEDS, st.booleans())
def test_capacity_left_counts_each_lease_while_it_lives(seed: int, mixed: bool) -> None:
    case = Case(seed)
    if mixed:
        case.mix()
    n, random = len(case.prompt_tokens), case.random
    decoded = random.integers(0, HORIZON_TOKENS + 5, n)
    lease_state = random.integers(0, 3, n) if mixed else np.full(n, 2)
    prefilled = random.integers(0, case.prompt_tokens + 1) * (lease_state == 1)
    lengths = case.length_class, case.exact_tokens
    leases = np.stack([np.arange(n), case.prompt_tokens, decoded, *lengths, lease_state, prefilled])
    cuts = np.sort(random.integers(0, n + 1, case.devices - 1)) if case.devices > 1 else np.zeros(0, dtype=np.int64)
    offset, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [n]])
    devices = np.flatnonzero(random.integers(0, 3, case.devices))
    left = np.full((3, *case.slot_price.shape), 9.0)
    expected_use_of_devices(
        leases,
        offset,
        ends - offset,
        devices,
        case.batch_slots,
        case.kv_tokens,
        case.token_budget,
        case.model.survival,
        case.edges,
        *left,
    )
    for g in range(case.devices):
        if g not in devices:
            assert np.all(left[:, g] == 9.0)
            continue
        rows = np.arange(offset[g], ends[g])
        budget, chunk = case.token_budget[g], max(case.token_budget[g] - len(rows), 1)
        rest = ((case.prompt_tokens - prefilled) * (lease_state < 2))[rows] * (budget > 0)
        delay = np.where(rest > 0, np.maximum(np.cumsum(rest) - 1, 0) // chunk, 0)
        for b in range(case.grid.buckets):
            middle = (case.edges[b] + case.edges[b + 1] - 1) // 2
            ahead = np.maximum(middle - delay, 0)
            alive = np.array([_alive(case, i, int(decoded[i]), h) for i, h in zip(rows, ahead, strict=True)])
            held = (case.prompt_tokens + decoded + 1)[rows] + ahead
            assert left[0, g, b] == pytest.approx(1.0 - alive.sum() / case.batch_slots[g])
            assert left[1, g, b] == pytest.approx(1.0 - (alive * held).sum() / case.kv_tokens[g])
            decoding = alive[(rest == 0) | (middle > delay)].sum()
            prompts = np.clip(rest.sum() - chunk * middle, 0, chunk)
            assert left[2, g, b] == pytest.approx(1.0 - (decoding + prompts) / budget if budget else 1.0)


def _alive(case: Case, i: int, decoded: int, ahead: int) -> float:
    if case.exact_tokens[i] > 0:
        return float(decoded + ahead < case.exact_tokens[i])
    survival = case.model.survival[case.length_class[i]]
    now = survival[min(decoded, HORIZON_TOKENS)]
    return float(survival[min(decoded + ahead, HORIZON_TOKENS)] / now) if now > 0 else 0.0


# --- projected_step -------------------------------------------------------------------------------------------------


def test_the_first_step_has_one_size_for_every_excess() -> None:
    for excess in (1e-3, 1.0, 1e3):
        price, square = np.ones((1, 1)), np.zeros((1, 1))
        projected_step(price, square, np.full((1, 1), excess), np.zeros((1, 1)), 0.25, 0.75)
        assert price[0, 0] == pytest.approx(1.0 + 0.25 / np.sqrt(0.25))
        assert square[0, 0] == pytest.approx(0.25 * excess**2)


@given(SEEDS, st.floats(0.0, 2.0), st.floats(0.0, 0.99))
def test_steps_equal_their_formula(seed: int, step: float, forget: float) -> None:
    random = np.random.default_rng(seed)
    price, square, demand_, left = random.exponential(1.0, (4, 2, 3)) * random.integers(0, 2, (4, 2, 3))
    expected, expected_square = price.copy(), square.copy()
    for at in np.ndindex(price.shape):
        excess = demand_[at] - left[at]
        expected_square[at] = forget * square[at] + (1 - forget) * excess**2
        expected[at] = max(0.0, price[at] + step * excess / (expected_square[at] ** 0.5 + 1e-12))
    projected_step(price, square, demand_, left, step, forget)
    np.testing.assert_allclose(price, expected)
    np.testing.assert_allclose(square, expected_square)


def test_excess_raises_slack_lowers_and_prices_stay_at_0_or_more() -> None:
    price = np.array([[1.0, 1.0, 0.01]])
    projected_step(price, np.zeros((1, 3)), np.array([[0.9, 0.1, 0.1]]), np.full((1, 3), 0.5), 0.1, 0.5)
    assert price[0, 0] > 1.0 > price[0, 1]
    assert price[0, 2] == 0.0
