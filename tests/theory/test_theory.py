"""Small versions of `bidroute theory`, and the bounds that hold at any prices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.theory.knapsack import chu_beasley, descend, pack
from bidroute.theory.observe import convergence, knapsacks, regret, regret_slopes, slope
from bidroute.theory.online import first_order, iid_requests, resolving
from bidroute.theory.packing import GrowingPacking, Packing, solve


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(5, 20), st.integers(1, 3))
def test_dual_lp_integer_and_ours_in_this_order_at_any_prices(seed: int, items: int, rows: int) -> None:
    packing = chu_beasley(items, rows, 0.5, seed)
    relaxed, whole = solve(packing), solve(packing, integer=True)
    assert packing.dual(relaxed.price) == pytest.approx(relaxed.value)
    assert whole.value <= relaxed.value + 1e-6
    random = np.random.default_rng(seed)
    for scale in (0.0, 0.3, 3.0):
        price = scale * random.exponential(1.0, rows)
        assert packing.dual(price) >= relaxed.value - 1e-6
        taken = pack(packing, price)
        assert packing.allows(taken)
        assert packing.value(taken) <= whole.value + 1e-6
    for online in (first_order(packing), resolving(packing, 3)):
        assert packing.allows(online)
        assert packing.value(online) <= whole.value + 1e-6


def test_a_growing_program_has_the_prices_of_one_solved_anew() -> None:
    packing = iid_requests(200, 3, 5)
    growing, random = GrowingPacking(packing), np.random.default_rng(0)
    for items in (20, 50, 51, 200):
        capacity = packing.capacity * items / 200 * random.uniform(0.5, 1.5, 3)
        anew = solve(Packing(packing.reward[:items], packing.use[:, :items], capacity)).price
        assert growing.price(items, capacity) == pytest.approx(anew, abs=1e-9)


def test_knapsacks_follow_the_recipe() -> None:
    packing = chu_beasley(100, 5, 0.25, 1)
    assert packing.use.min() >= 1
    assert packing.use.max() <= 1000
    assert np.all(packing.capacity == np.floor(0.25 * packing.use.sum(axis=1)))
    extra = packing.reward - packing.use.mean(axis=0)
    assert extra.min() >= -1
    assert extra.max() <= 500


def test_knapsacks_come_close_to_their_optimum() -> None:
    for row in knapsacks((100,), (5,), (0.25, 0.75), time_limit_s=1.5, seeds=2):
        assert row["dual"] >= row["lp"] - 1e-6
        assert row["lp"] >= row["integer_bound"] - 1e-6
        assert row["integer_bound"] >= row["integer"] - 1e-6 >= row["ours"] - 2e-6
        assert row["gap_to_integer"] - 1e-12 <= row["gap_to_bound"] <= row["gap_to_lp"] + 1e-12
        assert row["gap_to_lp"] < 0.05
        assert 0 <= row["proven"] <= row["seeds"] == 2


def test_invariant_12_regret_grows_no_faster_than_the_square_root() -> None:
    rows = list(regret((250, 500, 2000), seeds=3))
    assert all(row["first_order"] > 0 for row in rows)
    assert slope(rows, "first_order") <= 0.5
    assert all(row["20_per_run"] < row["first_order"] and row["every_50"] < row["first_order"] for row in rows)
    slopes = regret_slopes(rows)
    assert set(slopes) == {"first_order", "every_250", "every_50", "every_10", "20_per_run"}
    assert slopes["every_50"] < slopes["first_order"]


def test_prices_converge_with_steps_and_samples_and_sooner_when_warm() -> None:
    rows = {(row["steps"], row["samples"]): row for row in convergence((10, 160), (8, 128), seeds=3)}
    assert rows[160, 128]["cold"] < rows[10, 128]["cold"]
    assert rows[160, 128]["cold"] < rows[160, 8]["cold"]
    assert rows[10, 128]["warm"] < rows[10, 128]["cold"]
    assert all(row["cold"] >= -1e-9 and row["warm"] >= -1e-9 for row in rows.values())


def test_a_slope_is_that_of_the_logarithms() -> None:
    assert slope([{"requests": n, "first_order": 3.0 * n**0.5} for n in (10, 100, 1000)], "first_order") == (
        pytest.approx(0.5)
    )


def test_descent_starts_where_it_is_told_to() -> None:
    packing = iid_requests(60, 2, 0)
    optimum = solve(packing)
    _, values = descend(packing, 1, 60, 0, optimum.price)
    assert values[0] >= optimum.value - 1e-9
