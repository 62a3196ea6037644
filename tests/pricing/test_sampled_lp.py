"""Exact prices of a sample: against the program written out in full, and what they must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.pricing.columns import class_columns
from bidroute.pricing.exact_lp import Instance, dual_value, solve_lp
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import Sample
from bidroute.pricing.sampled_lp import LEAST_LEFT, Columns, Devices, columns_of, exact_prices
from bidroute.theory.packing import Packing, solve
from tests.pricing.random_case import Case, demand

SEEDS = st.integers(0, 2**32 - 1)
DECAY_S = 7.0


def case_of(seed: int, mixed: bool) -> Case:
    case = Case(seed)
    if mixed:
        case.mix()
    return case


def devices_of(case: Case) -> Devices:
    left = case.random.uniform(0.0, 1.0, (3, case.devices, case.grid.buckets))
    left[2, case.token_budget == 0] = 1.0
    capacity = np.stack([case.batch_slots, case.kv_tokens, case.token_budget])
    return Devices(left, capacity, np.maximum(case.token_budget - case.open_leases, 1), case.period_s)


def sample_of(case: Case) -> Sample:
    return Sample(case.prompt_tokens, case.length_class, case.exact_tokens, case.reward, case.weight, case.earliest)


def guess_of(case: Case) -> np.ndarray:
    return np.stack([case.slot_price, case.kv_price, case.token_price])


def prices_of(case: Case, devices: Devices, sample: Sample, scale: float = 1.0) -> np.ndarray:
    price = exact_prices(devices, case.grid, case.columns, sample, DECAY_S, scale, guess_of(case) * scale)
    assert price is not None
    return price


def net_of(columns: Columns, price: np.ndarray, case: Case) -> np.ndarray:
    """Reward less price of every column."""
    per_bucket = price * case.grid.widths_periods
    return columns.reward - sum(
        (columns.use[:, resource] * per_bucket[resource, columns.device]).sum(axis=1)
        for resource in range(columns.use.shape[1])
    )


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
def test_the_prices_are_those_of_the_whole_program(seed: int, mixed: bool) -> None:
    """At them the dual is what the program, with all its columns at once, is worth."""
    case = case_of(seed, mixed)
    devices, sample = devices_of(case), sample_of(case)
    columns = columns_of(devices, case.grid, case.columns, sample, DECAY_S)
    price = prices_of(case, devices, sample)
    assert price.min() >= 0.0
    assert not price[2, case.token_budget == 0].any()
    left = np.maximum(devices.left, LEAST_LEFT)
    best = np.zeros(len(sample.weight))
    np.maximum.at(best, columns.request, net_of(columns, price, case))
    dual = float((left * price * case.grid.widths_periods).sum() + sample.weight @ best)
    assert dual == pytest.approx(whole_program(columns, left, sample.weight), rel=1e-4)


def whole_program(columns: Columns, left: np.ndarray, weight: np.ndarray) -> float:
    """Its optimum, as one packing with a row for each request too; every x is below its request's weight."""
    if not len(columns.request):
        return 0.0
    count, buckets = left.shape[1:]
    use = np.zeros((len(weight) + left.size, len(columns.request)))
    for column, (request, device) in enumerate(zip(columns.request, columns.device, strict=True)):
        use[request, column] = 1.0
        for resource, held in enumerate(columns.use[column]):
            first = len(weight) + (resource * count + device) * buckets
            use[first : first + buckets, column] = held
    most = weight[columns.request]
    return solve(Packing(columns.reward * most, use * most, np.concatenate([weight, left.ravel()]))).value


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.booleans())
def test_columns_are_those_that_the_steps_choose_among(seed: int, mixed: bool) -> None:
    """At random prices the best column of each request holds what the kernel of the steps adds up."""
    case = case_of(seed, mixed)
    devices, sample = devices_of(case), sample_of(case)
    columns = columns_of(devices, case.grid, case.columns, sample, DECAY_S)
    net = net_of(columns, guess_of(case), case)
    wanted = np.zeros((3, case.devices, case.grid.buckets))
    for i in range(len(sample.reward)):
        own = np.flatnonzero(columns.request == i)
        if len(own) and net[own].max() > 0.0:
            best = own[np.argmax(net[own])]
            wanted[: columns.use.shape[1], columns.device[best]] += sample.weight[i] * columns.use[best]
    _, use = demand(case, DECAY_S, np.arange(case.devices))
    assert use == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert not use[2, case.token_budget == 0].any()


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.booleans(), st.integers(-20, 20))
def test_invariant_4_prices_scale_with_the_rewards(seed: int, mixed: bool, exponent: int) -> None:
    case, scale = case_of(seed, mixed), 2.0**exponent
    devices, sample = devices_of(case), sample_of(case)
    scaled = Sample(**(sample_columns(sample) | {"reward": sample.reward * scale}))
    assert np.array_equal(prices_of(case, devices, scaled, scale), prices_of(case, devices, sample) * scale)


def sample_columns(sample: Sample) -> dict[str, np.ndarray]:
    return {name: getattr(sample, name) for name in Sample.__slots__}


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.booleans())
def test_invariant_6_permuting_the_devices_permutes_the_prices(seed: int, mixed: bool) -> None:
    case = case_of(seed, mixed)
    devices, sample = devices_of(case), sample_of(case)
    order = case.random.permutation(case.devices)
    plain = prices_of(case, devices, sample)
    case.slot_price, case.kv_price, case.token_price = guess_of(case)[:, order]
    assert np.array_equal(prices_of(case, devices.at(order), sample), plain[:, order])


@pytest.mark.parametrize(("seed", "mixed"), [(11, False), (5, True)])
def test_devices_alike_have_equal_prices(seed: int, mixed: bool) -> None:
    case = case_of(seed, mixed)
    devices = devices_of(case)
    twins = devices.at(np.full(3, np.argmax(case.token_budget)))
    case.slot_price, case.kv_price, case.token_price = np.zeros((3, 3, case.grid.buckets))
    price = prices_of(case, twins, sample_of(case))
    assert price[twins.resources - 1].max() > 0.0
    assert np.array_equal(price, np.repeat(price[:, :1], 3, axis=1))


@pytest.mark.parametrize("mixed", [False, True])
def test_invariant_3_what_nobody_needs_is_free(mixed: bool) -> None:
    case = case_of(5, mixed)
    case.weight = case.weight * 1e-6
    devices = devices_of(case)
    everything = devices._replace(left=np.ones_like(devices.left))
    assert prices_of(case, everything, sample_of(case)).max() == 0.0


# --- the third row --------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_without_budgets_there_are_two_rows_whatever_is_said_of_the_third(seed: int) -> None:
    case = Case(seed)
    devices, sample = devices_of(case), sample_of(case)
    plain = prices_of(case, devices, sample)
    assert columns_of(devices, case.grid, case.columns, sample, DECAY_S).use.shape[1] == devices.resources == 2
    left = np.concatenate([devices.left[:2], case.random.uniform(-1.0, 1.0, (1, *devices.left.shape[1:]))])
    case.token_price = case.random.exponential(1.0, case.slot_price.shape)
    assert np.array_equal(prices_of(case, devices._replace(left=left), sample), plain)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_budget_that_never_binds_changes_nothing(seed: int) -> None:
    """It takes every prompt at once, so that columns and prices are those of devices without one."""
    case = Case(seed)
    devices, sample = devices_of(case), sample_of(case)
    plain = prices_of(case, devices, sample)
    capacity = devices.capacity.copy()
    capacity[2] = 10**9
    ample = devices._replace(capacity=capacity, chunk_tokens=capacity[2])
    assert prices_of(case, ample, sample) == pytest.approx(plain, rel=1e-6, abs=1e-9)


def one_device(case: Case, slots: int, kv_tokens: int, budget: int) -> Devices:
    """With all of its capacity left, and periods of a second."""
    left = np.ones((3, 1, case.grid.buckets))
    return Devices(left, np.array([[slots], [kv_tokens], [budget]]), np.array([budget]), np.ones(1))


def known(case: Case, prompt: np.ndarray, output: np.ndarray, reward: np.ndarray, weight: np.ndarray) -> Sample:
    """Requests of known lengths that may start at once."""
    return Sample(prompt, np.zeros_like(prompt), output, reward, weight, np.zeros_like(prompt))


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 30), st.integers(1, 20))
def test_where_only_the_budget_binds_its_price_is_that_of_a_fractional_knapsack(
    seed: int, budget: int, periods: int
) -> None:
    """One bucket, and requests of one output token: what the last one that still fits is worth per token."""
    case = grid_of(TimeGrid.uniform(periods, 1))
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 10))
    prompt, weight = random.integers(1, 100, n), random.uniform(0.1, 3.0, n)
    reward = random.uniform(1.0, 2.0, n)
    price = prices_of(
        case, one_device(case, 10**5, 10**6, budget), known(case, prompt, np.ones_like(prompt), reward, weight)
    )
    assert price[:2].max() == 0.0
    worth = reward * DECAY_S / (DECAY_S + 1.0 + (prompt - 1) // budget) / prompt
    order = np.argsort(-worth)
    taken = np.cumsum((weight * prompt)[order])
    last = np.searchsorted(taken, budget * periods)
    per_token = worth[order[last]] if last < n else 0.0
    assert price[2, 0, 0] == pytest.approx(budget * per_token, rel=1e-5, abs=1e-9)


def test_the_price_of_a_period_is_what_starting_there_gains_over_the_first_that_is_free() -> None:
    """3.5 prompts of one iteration each: the fourth period has room left, and whoever starts earlier pays for that."""
    case = grid_of(TimeGrid.uniform(10, 10))
    one = np.ones(1, dtype=np.int64)
    price = prices_of(case, one_device(case, 1000, 10**6, 8), known(case, 8 * one, one, 2.0 * one, 3.5 * one))
    worth = 2.0 * DECAY_S / (DECAY_S + 1.0 + np.arange(10))
    assert price[:2].max() == 0.0
    assert price[2, 0] == pytest.approx(np.maximum(worth - worth[3], 0.0), abs=1e-6)


def test_a_longer_prompt_holds_slot_and_kv_while_it_is_processed_and_is_late_by_that() -> None:
    case = grid_of(TimeGrid.uniform(5, 5))
    one = np.ones(1, dtype=np.int64)
    sample = known(case, 10 * one, 2 * one, one, one)
    columns = columns_of(one_device(case, 2, 100, 4), case.grid, case.columns, sample, DECAY_S)
    assert columns.use[0] * [[2], [100], [4]] == pytest.approx(
        np.array([[1, 1, 1, 1, 0], [4, 8, 11, 12, 0], [4, 4, 2, 1, 0]])
    )
    assert columns.reward[0] == pytest.approx(DECAY_S / (DECAY_S + 4.0))


def grid_of(grid: TimeGrid) -> Case:
    """A case on this grid, with nothing known of its prices."""
    case = Case(0)
    case.grid = grid
    case.columns = class_columns(case.model, grid, grid.edges_periods[:-1].copy())
    case.slot_price, case.kv_price, case.token_price = np.zeros((3, 1, grid.buckets))
    return case


PERIODS = 60  # in which all of them end, so that no start of the sample runs past the horizon of the exact program


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(1, 2), st.sampled_from([(50, 5000), (3, 5000), (50, 60)]))
def test_in_single_periods_the_prices_are_those_of_the_exact_program(
    seed: int, devices: int, most: tuple[int, int]
) -> None:
    """Where only the budget binds, slots bind too, or KV does: at its prices the dual of `exact_lp` is its optimum."""
    random = np.random.default_rng(seed)
    case, n = grid_of(TimeGrid.uniform(PERIODS, PERIODS)), 8
    case.slot_price, case.kv_price, case.token_price = np.zeros((3, devices, PERIODS))
    prompt, output, reward = random.integers(10, 30, n), random.integers(1, 6, n), random.uniform(1.0, 4.0, n)
    budget, leases = random.integers(10, 20, devices), random.integers(0, 5, devices)
    one = np.ones(devices, dtype=np.int64)
    fleet = Devices(
        np.ones((3, devices, PERIODS)),
        np.stack([most[0] * one, most[1] * one, budget]),
        budget - leases,
        random.uniform(0.5, 1.0, devices),
    )
    small = instance_of(fleet, prompt, output, reward)
    price = prices_of(case, fleet, known(case, prompt, output, reward, np.ones(n)))
    per_unit = price / fleet.capacity[:, :, None]
    optimum = solve_lp(small)
    assert dual_value(small, *per_unit) == pytest.approx(optimum.value, rel=1e-4)
    if most == (50, 5000):
        assert min(price[2].max(), optimum.token_price.max()) > 0.0
        assert price[:2].max() == optimum.slot_price.max() == optimum.kv_price.max() == 0.0


def instance_of(fleet: Devices, prompt: np.ndarray, output: np.ndarray, reward: np.ndarray) -> Instance:
    """The exact program of requests that are all there at once, and are worth less the later they end."""
    slots, kv_tokens, budget = fleet.capacity
    chunk = fleet.chunk_tokens
    took = output[:, None, None] + (prompt[:, None, None] - 1) // chunk[None, :, None] + np.arange(PERIODS)
    worth = reward[:, None, None] * DECAY_S / (DECAY_S + took * fleet.period_s[None, :, None])
    return Instance(np.zeros_like(prompt), prompt, output, worth, slots, kv_tokens, budget, chunk)
