"""Exact prices of a sample: against the program written out in full, and what they must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.pricing.prices import Sample
from bidroute.pricing.sampled_lp import LEAST_LEFT, Columns, Devices, columns_of, exact_prices
from bidroute.theory.packing import Packing, solve
from tests.pricing.random_case import Case, demand

SEEDS = st.integers(0, 2**32 - 1)
DECAY_S = 7.0


def devices_of(case: Case) -> Devices:
    left = case.random.uniform(0.0, 1.0, (2, case.devices, case.grid.buckets))
    return Devices(left[0], left[1], case.batch_slots, case.kv_tokens, case.period_s)


def sample_of(case: Case) -> Sample:
    return Sample(case.prompt_tokens, case.length_class, case.exact_tokens, case.reward, case.weight, case.earliest)


def prices_of(case: Case, devices: Devices, sample: Sample, scale: float = 1.0) -> np.ndarray:
    guess = np.stack([case.slot_price, case.kv_price]) * scale
    price = exact_prices(devices, case.grid, case.columns, sample, DECAY_S, scale, guess)
    assert price is not None
    return price


def net_of(columns: Columns, price: np.ndarray, case: Case) -> np.ndarray:
    """Reward less price of every column."""
    per_bucket = price * case.grid.widths_periods
    return columns.reward - sum(
        (use * per_bucket[resource, columns.device]).sum(axis=1)
        for resource, use in enumerate((columns.slots, columns.kv))
    )


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_prices_are_those_of_the_whole_program(seed: int) -> None:
    """At them the dual is what the program, with all its columns at once, is worth."""
    case = Case(seed)
    devices, sample = devices_of(case), sample_of(case)
    columns = columns_of(devices, case.grid, case.columns, sample, DECAY_S)
    price = prices_of(case, devices, sample)
    assert price.min() >= 0.0
    left = np.maximum(np.stack([devices.slots_left, devices.kv_left]), LEAST_LEFT)
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
        for resource, held in enumerate((columns.slots, columns.kv)):
            first = len(weight) + (resource * count + device) * buckets
            use[first : first + buckets, column] = held[column]
    most = weight[columns.request]
    return solve(Packing(columns.reward * most, use * most, np.concatenate([weight, left.ravel()]))).value


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_columns_are_those_that_the_steps_choose_among(seed: int) -> None:
    """At random prices the best column of each request holds what the kernel of the steps adds up."""
    case = Case(seed)
    devices, sample = devices_of(case), sample_of(case)
    columns = columns_of(devices, case.grid, case.columns, sample, DECAY_S)
    net = net_of(columns, np.stack([case.slot_price, case.kv_price]), case)
    wanted = np.zeros((2, case.devices, case.grid.buckets))
    for i in range(len(sample.reward)):
        own = np.flatnonzero(columns.request == i)
        if len(own) and net[own].max() > 0.0:
            best = own[np.argmax(net[own])]
            wanted[0, columns.device[best]] += sample.weight[i] * columns.slots[best]
            wanted[1, columns.device[best]] += sample.weight[i] * columns.kv[best]
    _, use = demand(case, DECAY_S, np.arange(case.devices))
    assert use[:2] == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert not use[2].any()  # none of the devices has a token budget


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(-20, 20))
def test_invariant_4_prices_scale_with_the_rewards(seed: int, exponent: int) -> None:
    case, scale = Case(seed), 2.0**exponent
    devices, sample = devices_of(case), sample_of(case)
    scaled = Sample(**(sample_columns(sample) | {"reward": sample.reward * scale}))
    assert np.array_equal(prices_of(case, devices, scaled, scale), prices_of(case, devices, sample) * scale)


def sample_columns(sample: Sample) -> dict[str, np.ndarray]:
    return {name: getattr(sample, name) for name in Sample.__slots__}


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_invariant_6_permuting_the_devices_permutes_the_prices(seed: int) -> None:
    case = Case(seed)
    devices, sample = devices_of(case), sample_of(case)
    order = case.random.permutation(case.devices)
    plain = prices_of(case, devices, sample)
    case.slot_price, case.kv_price = case.slot_price[order], case.kv_price[order]
    assert np.array_equal(prices_of(case, devices.at(order), sample), plain[:, order])


def test_devices_alike_have_equal_prices() -> None:
    case = Case(11)
    devices = devices_of(case)
    twins = devices.at(np.zeros(3, dtype=np.int64))
    case.slot_price, case.kv_price = np.zeros((2, 3, case.grid.buckets))
    price = prices_of(case, twins, sample_of(case))
    assert price.max() > 0.0
    assert np.array_equal(price, np.repeat(price[:, :1], 3, axis=1))


def test_invariant_3_what_nobody_needs_is_free() -> None:
    case = Case(5)
    case.weight = case.weight * 1e-6
    sample = sample_of(case)
    devices = devices_of(case)
    everything = Devices(np.ones_like(devices.slots_left), np.ones_like(devices.kv_left), *devices[2:])
    assert prices_of(case, everything, sample).max() == 0.0
