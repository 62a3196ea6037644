import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bidroute.experiments.frontier.outcomes import FRONT_MEASURES, Outcome, costs, dominators, spread_out
from bidroute.experiments.frontier.sweep import preset_standings
from tests.experiments.frontier.fakes import fake_sweep, outcome, row

tables = arrays(float, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.integers(0, 5).map(float))


def test_who_is_beaten_and_by_whom():
    cost = np.array([[1.0, 5.0], [2.0, 2.0], [3.0, 3.0], [2.0, 2.0], [5.0, 1.0]])
    assert dominators(cost) == [None, None, 1, None, None]


@given(tables)
def test_nothing_on_the_front_is_beaten_and_all_else_is_by_something(cost):
    beaten = dominators(cost)
    assert None in beaten
    for row_index, other in enumerate(beaten):
        worse = [np.all(cost[i] <= cost[row_index]) and np.any(cost[i] < cost[row_index]) for i in range(len(cost))]
        assert any(worse) == (other is not None)
        assert other is None or worse[other]


@given(tables, st.integers(1, 25))
def test_a_thinned_front_has_the_best_of_every_column_and_nothing_twice(cost, count):
    chosen = spread_out(cost, count)
    assert len({tuple(cost[row]) for row in chosen}) == len(chosen) <= count
    if count >= cost.shape[1]:
        assert np.array_equal(cost[chosen].min(axis=0), cost.min(axis=0))
    if count >= len(cost):
        assert {tuple(row) for row in cost} == {tuple(cost[row]) for row in chosen}


def test_figures_are_medians_over_the_seeds_and_rates_count_downwards():
    one = Outcome(outcome(1, 1).candidate, (row(1.0, 4.0), row(2.0, 6.0), row(9.0, 5.0)))
    assert one.median("e2e_s.mean") == 2.0
    assert one.spread("e2e_s.p99").half_range == 1.0
    assert costs([one]).tolist() == [[2.0, 5.0, 1.0, -100.0, -10.0]]
    assert len(FRONT_MEASURES) == 5


def test_a_run_without_figures_is_beaten_by_every_other():
    nothing = outcome(None, None, ttft_p99=None, tokens=0.0, goodput=0.0)
    assert dominators(costs([nothing, outcome(1.0, 1.0)])) == [1, None]


def test_presets_stand_by_their_own_goals():
    latency, tail = preset_standings(fake_sweep())
    assert (latency.value, latency.best_value, latency.behind) == (3.5, 2.0, 0.75)
    assert latency.dominated_by.candidate.label == "patience=1.1"
    assert (tail.value, tail.best_value, tail.behind, tail.dominated_by) == (9.0, 9.0, 0.0, None)
