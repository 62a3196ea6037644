"""Costs against a twin in plain Python that goes period by period."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.pricing.cost_kernels import Prices, costs_on_devices
from tests.pricing.random_case import Case

SEEDS = st.integers(0, 2**32 - 1)


def costs(case: Case, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    prices = Prices(
        case.slot_price,
        case.kv_price,
        case.token_price,
        case.batch_slots,
        case.kv_tokens,
        case.token_budget,
        case.open_leases,
        case.edges,
        case.columns.starting_now_slots,
        case.columns.starting_now_growth,
    )
    slot_cost, kv_cost, token_cost, footprint = np.full((4, len(devices), len(case.prompt_tokens)), np.nan)
    requests = case.prompt_tokens, case.length_class, case.exact_tokens
    costs_on_devices(prices, devices, *requests, slot_cost, kv_cost, token_cost, footprint)
    return slot_cost, kv_cost, token_cost, footprint


@given(SEEDS)
def test_costs_equal_a_sum_over_periods(seed: int) -> None:
    case = Case(seed)
    devices = case.random.permutation(case.devices)
    slot_cost, kv_cost, token_cost, footprint = costs(case, devices)
    assert token_cost.max() == 0.0
    for d, g in enumerate(devices):
        for i in range(len(case.prompt_tokens)):
            slots, tokens = case.held(i, 0)
            assert slot_cost[d, i] == pytest.approx(slots @ case.slot_price[g] / case.batch_slots[g])
            assert kv_cost[d, i] == pytest.approx(tokens @ case.kv_price[g] / case.kv_tokens[g])
            share = slots.sum() / case.batch_slots[g] + tokens.sum() / case.kv_tokens[g]
            assert footprint[d, i] == pytest.approx(share)


@given(SEEDS)
def test_costs_under_a_token_budget_equal_a_sum_over_periods(seed: int) -> None:
    case = Case(seed)
    case.mix()
    devices = case.random.permutation(case.devices)
    slot_cost, kv_cost, token_cost, footprint = costs(case, devices)
    for d, g in enumerate(devices):
        budget = max(case.token_budget[g], 1)
        for i in range(len(case.prompt_tokens)):
            slots, tokens, used = case.mixed(i, 0, g)
            assert slot_cost[d, i] == pytest.approx(slots @ case.slot_price[g] / case.batch_slots[g])
            assert kv_cost[d, i] == pytest.approx(tokens @ case.kv_price[g] / case.kv_tokens[g])
            assert token_cost[d, i] == pytest.approx(used @ case.token_price[g] / budget)
            share = slots.sum() / case.batch_slots[g] + tokens.sum() / case.kv_tokens[g] + used.sum() / budget
            assert footprint[d, i] == pytest.approx(share)


def test_invariant_4_costs_do_not_depend_on_the_kv_unit() -> None:
    case, factor = Case(7), 16  # a power of two: equal to the last bit
    case.exact_tokens[:] = 0  # a request of known length grows by one token per period, in tokens
    devices = np.arange(case.devices)
    before = costs(case, devices)
    case.prompt_tokens, case.kv_tokens = case.prompt_tokens * factor, case.kv_tokens * factor
    case.columns.starting_now_growth[:] *= factor
    for old, new in zip(before, costs(case, devices), strict=True):
        np.testing.assert_array_equal(old, new)
