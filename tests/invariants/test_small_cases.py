"""Invariant 11: small exact cases, through the simulator, with `bid_price`."""

import pytest

from bidroute.simulator import Outcome
from tests.invariants.runs import run


@pytest.mark.parametrize("order", [(1, 10), (10, 1)])
def test_invariant_11_one_slot_completions_sum_to_12(order: tuple[int, int]) -> None:
    result = run([(0.0, 0, output) for output in order], 1, 1000)
    assert result.end_s.sum() == 12.0


def test_invariant_11_kv_10_peaks_of_6_go_one_at_a_time() -> None:
    # The KV of 10 binds, not the slots: both may hold 5 tokens, so the second starts when the first is at its peak
    # only if its own first tokens fit beside it. Neither is ever thrown out.
    result = run([(0.0, 5, 1), (0.0, 5, 1)], 4, 10)
    assert sorted(result.start_s.tolist()) == [0.0, 1.0]
    assert result.preemptions.sum() == 0


def test_invariant_11_kv_10_peaks_of_5_run_together() -> None:
    result = run([(0.0, 0, 5), (0.0, 0, 5)], 4, 10)
    assert result.start_s.tolist() == [0.0, 0.0]


def test_invariant_11_kv_10_a_peak_of_11_is_refused() -> None:
    result = run([(0.0, 0, 11), (0.0, 0, 10)], 4, 10)
    assert result.status.tolist() == [Outcome.REFUSED, Outcome.FINISHED]


def test_invariant_11_peaks_that_never_coincide_run_together() -> None:
    # 7 tokens in period 1 and 8 in period 7: the peaks sum to 15, but at no period do both hold more than 10
    result = run([(0.0, 5, 2), (0.0, 0, 8)], 4, 10)
    assert result.start_s.tolist() == [0.0, 0.0]
    assert result.preemptions.sum() == 0


def test_invariant_11_growing_jobs_of_peak_6_overlap_only_where_they_fit() -> None:
    # Both grow from 1 to 6 tokens. Two periods apart they hold at most 6 + 4 = 10.
    result = run([(0.0, 0, 6), (0.0, 0, 6)], 4, 10)
    assert sorted(result.start_s.tolist()) == [0.0, 2.0]
    assert result.preemptions.sum() == 0
