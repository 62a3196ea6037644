from dataclasses import replace

import pytest

from bidroute.experiments.measures import MEASURES
from bidroute.experiments.results import Comparison
from bidroute.experiments.verdict import change, judge
from tests.report.fakes import SCENARIO, fake_comparison, result

E2E_MEAN, E2E_P99, _, _, TOKENS, GOODPUT, PREEMPTIONS = MEASURES


def test_the_subject_meets_the_strongest_other_policy_not_the_weakest():
    verdict = judge(fake_comparison())
    assert (verdict.subject, verdict.strongest) == ("bid_price", "fifo+safety")
    outcomes = {one.measure.label: one.outcome for one in verdict.changes}
    assert outcomes["E2E mean"] == 1
    assert outcomes["E2E p99"] == -1
    assert [loss.measure.label for loss in verdict.losses] == ["E2E p99"]


def test_without_bid_price_the_best_policy_is_the_subject():
    comparison = fake_comparison()
    others = [one for one in comparison.results if one.policy != "bid_price"]
    verdict = judge(Comparison(comparison.scenario, others))
    assert (verdict.subject, verdict.strongest) == ("fifo+safety", "join_shortest_queue")


def test_bid_price_with_options_is_the_subject_too():
    comparison = fake_comparison()
    named = [replace(one, policy=one.policy.replace("bid_price", "bid_price:risk_z=1")) for one in comparison.results]
    assert judge(Comparison(comparison.scenario, named)).subject == "bid_price:risk_z=1"


def test_one_policy_alone_gets_no_verdict():
    assert judge(Comparison(dict(SCENARIO), [result("fifo", 0, (1.0, 2.0), 1.0, 10.0, 0)])) is None


def test_changes_are_paired_by_seed():
    against = change(fake_comparison(), E2E_MEAN, "bid_price", "join_shortest_queue")
    assert against.low == pytest.approx(min(6.0 / 13 - 1, 6.3 / 14 - 1))
    assert against.high == pytest.approx(max(6.0 / 13 - 1, 6.3 / 14 - 1))


def test_seeds_that_disagree_make_neither_a_win_nor_a_loss():
    runs = [
        result("a", 0, (1.0, 2.0), 1.0, 10.0, 0),
        result("a", 1, (3.0, 2.0), 1.0, 10.0, 0),
        result("b", 0, (2.0, 2.0), 1.0, 10.0, 0),
        result("b", 1, (2.0, 2.0), 1.0, 10.0, 0),
    ]
    assert change(Comparison(dict(SCENARIO), runs), E2E_MEAN, "a", "b").outcome == 0


def test_more_tokens_per_second_are_better_and_none_stay_level():
    comparison = fake_comparison()
    assert change(comparison, TOKENS, "bid_price", "fifo+safety").outcome == 1
    assert change(comparison, PREEMPTIONS, "bid_price", "fifo+safety").outcome == 0
    assert change(comparison, PREEMPTIONS, "join_shortest_queue", "fifo+safety").outcome == -1
    assert change(comparison, GOODPUT, "bid_price", "fifo+safety").outcome == 0
