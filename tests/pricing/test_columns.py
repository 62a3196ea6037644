import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.lengths import LengthModel
from bidroute.pricing import columns
from bidroute.pricing.columns import class_columns
from bidroute.pricing.grid import TimeGrid
from tests.pricing.random_case import Case


def test_a_length_that_is_certain_gives_the_exact_column() -> None:
    model = LengthModel(1, 8)
    model.survival[0] = (np.arange(9) < 5).astype(float)
    columns = class_columns(model, TimeGrid(np.array([0, 2, 10])), np.array([0, 2]))
    assert columns.slots[0].tolist() == [[2, 3], [0, 5]]
    assert columns.growth[0].tolist() == [[3, 12], [0, 15]]
    assert columns.mean_tokens.tolist() == [5]
    assert columns.mean_growth.tolist() == [15]


@given(st.integers(0, 2**32 - 1))
def test_columns_equal_a_sum_over_periods(seed: int) -> None:
    case = Case(seed)
    case.exact_tokens[:], case.prompt_tokens[:] = 0, 0
    for i, c in enumerate(case.length_class):
        for u, start in enumerate(case.starts):
            slots, tokens = case.held(i, start)
            np.testing.assert_allclose(case.columns.slots[c, u], slots, atol=1e-12)
            np.testing.assert_allclose(case.columns.growth[c, u], tokens, atol=1e-12)
    np.testing.assert_array_equal(case.columns.starting_now_slots, case.columns.slots[:, 0])
    np.testing.assert_array_equal(case.columns.starting_now_growth, case.columns.growth[:, 0])


@given(st.integers(0, 2**32 - 1))
def test_no_start_loses_anything(seed: int) -> None:
    """Whatever the start, a column has all of a request: what lies beyond the horizon is in the last bucket."""
    columns = Case(seed).columns
    starts = columns.slots.shape[1]
    np.testing.assert_allclose(columns.slots.sum(axis=2), np.repeat(columns.mean_tokens[:, None], starts, axis=1))
    np.testing.assert_allclose(columns.growth.sum(axis=2), np.repeat(columns.mean_growth[:, None], starts, axis=1))


def test_they_carry_the_version_of_the_model() -> None:
    model = LengthModel(1, 50)
    grid, starts = TimeGrid.uniform(10, 2), np.array([0])
    before = class_columns(model, grid, starts)
    for _ in range(3):
        model.observe(0, 2)
    model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    after = class_columns(model, grid, starts)
    assert (before.version, after.version) == (0, model.version)
    assert after.mean_tokens[0] < before.mean_tokens[0]


def test_columns_brought_up_to_date_are_those_made_anew() -> None:
    model, grid, starts = LengthModel(3, 50), TimeGrid.uniform(20, 4), np.array([0, 5])
    before = class_columns(model, grid, starts)
    for _ in range(3):
        model.observe(1, 2)
    model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    anew, updated = class_columns(model, grid, starts), class_columns(model, grid, starts, before)
    assert updated.version == model.version
    for name in ("slots", "growth", "mean_tokens", "mean_growth", "starting_now_slots", "starting_now_growth"):
        np.testing.assert_array_equal(getattr(updated, name), getattr(anew, name))
    for c in range(3):
        assert (model.changed_at[c] > 0) == (not np.array_equal(before.slots[c], updated.slots[c]))


def test_what_is_learned_while_columns_are_tabulated_is_in_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, grid, starts = LengthModel(1, 50), TimeGrid.uniform(20, 4), np.array([0, 5])
    before, sums = class_columns(model, grid, starts), columns.running_sums

    def sums_while_another_learns(*arrays: object) -> None:
        sums(*arrays)
        for _ in range(30):
            model.observe(0, 40)
        model.learn(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    with monkeypatch.context() as patch:
        patch.setattr(columns, "running_sums", sums_while_another_learns)
        during = class_columns(model, grid, starts, before)
    after = class_columns(model, grid, starts, during)
    np.testing.assert_array_equal(after.slots, class_columns(model, grid, starts).slots)
