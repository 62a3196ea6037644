import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.errors import ConfigError
from bidroute.pricing.grid import MAX_BUCKETS, TimeGrid


def test_uniform_widths() -> None:
    grid = TimeGrid.uniform(12, 4)
    assert grid.edges_periods.tolist() == [0, 3, 6, 9, 12]
    assert grid.widths_periods.tolist() == [3, 3, 3, 3]
    assert (grid.buckets, grid.horizon_periods) == (4, 12)


def test_geometric_widths_double() -> None:
    assert TimeGrid.geometric(16, 4).edges_periods.tolist() == [0, 2, 4, 8, 16]


def test_more_buckets_than_periods_become_single_periods() -> None:
    assert TimeGrid.uniform(3, 10).edges_periods.tolist() == [0, 1, 2, 3]
    assert TimeGrid.geometric(3, 10).edges_periods.tolist() == [0, 1, 2, 3]


@given(st.sampled_from(["uniform", "geometric"]), st.integers(1, 40_000), st.integers(1, MAX_BUCKETS))
def test_every_grid_covers_its_horizon(kind: str, horizon: int, buckets: int) -> None:
    grid = getattr(TimeGrid, kind)(horizon, buckets)
    assert grid.edges_periods[0] == 0
    assert grid.horizon_periods == horizon
    assert grid.buckets <= buckets
    assert grid.widths_periods.min() >= 1
    assert grid.widths_periods.sum() == horizon


@pytest.mark.parametrize("kind", ["uniform", "geometric"])
@pytest.mark.parametrize(("horizon", "buckets"), [(0, 4), (-3, 4), (32_000, 0), (32_000, -1), (32_000, 65)])
def test_impossible_grids_are_refused(kind: str, horizon: int, buckets: int) -> None:
    with pytest.raises(ConfigError, match="time grid"):
        getattr(TimeGrid, kind)(horizon, buckets)


@pytest.mark.parametrize("edges", [[0], [1, 2], [0, 2, 2], [0, 3, 2]])
def test_edges_start_at_0_and_rise(edges: list[int]) -> None:
    with pytest.raises(ConfigError, match="time grid"):
        TimeGrid(np.array(edges))


def test_the_longest_outputs_served_fit_in_64_buckets() -> None:
    assert TimeGrid.geometric(32_000, 64).horizon_periods == 32_000
    assert TimeGrid.uniform(32_000, 64).horizon_periods == 32_000
