"""The tables of docs/vidur.md; what they are made of is run by tests/vidur."""

import pytest
from tools.results_vidur.experiments import EXPERIMENTS, NOISY, PUBLISHED, SHIFTED, cases
from tools.results_vidur.page import BEGIN, END, FIGURES, Runs, improvement, tables, write_tables
from tools.results_vidur.workloads import capacity_per_s, workload_of

from bidroute.errors import ConfigError

NAMES = tuple(one.name for one in EXPERIMENTS)


def _rows(seeds=(0, 1)):
    """Everybody takes 10 s but bid_price, which takes 5."""
    return {case: _row(5.0 if case.policy == "bid_price" else 10.0) for case in cases(100, seeds, NAMES)}


def _row(seconds):
    times = {"mean": seconds, "p50": seconds, "p95": seconds, "p99": seconds}
    counts = {"preemptions": 0, "refused": 0, "unfinished": 0}
    return {"e2e_s": times, "ttft_s": times, "output_tokens_per_s": 100.0 / seconds, "slo_violations": 0.1, **counts}


def test_every_policy_gets_the_same_runs():
    for experiment in EXPERIMENTS:
        runs = [case for case in cases(100, (0, 1, 2), NAMES) if case.experiment == experiment]
        baseline = [case for case in runs if case.policy == "round_robin"]
        assert len(baseline) == 3
        assert {case.requests for case in runs} == {baseline[0].requests}


def test_improvements_are_over_round_robin():
    mean, tokens = FIGURES[0], next(one for one in FIGURES if one.more_is_better)
    assert improvement(mean, 10.0, 5.0) == 50.0
    assert improvement(tokens, 10.0, 5.0) == -50.0
    runs = Runs(_rows())
    assert runs.improvements(mean, EXPERIMENTS[0]) == [50.0, 50.0]


def test_the_page_has_a_table_for_everything():
    text = tables(Runs(_rows()))
    for experiment in EXPERIMENTS:
        assert f"### {experiment.title} (" in text
    assert text.count("| E2E mean | +45.75 | **+50** |") == 1
    assert text.count("| E2E mean | +44.81 | **+50** |") == 1
    assert "### Objectives: KV binds, over capacity" in text
    assert "–" not in text.split("###")[1]
    assert set(NOISY + SHIFTED) <= set(NAMES)
    assert set(PUBLISHED) <= {one.title for one in FIGURES}


def test_an_experiment_counts_with_the_seeds_that_are_complete():
    rows = _rows()
    del rows[next(case for case in rows if case.experiment == EXPERIMENTS[0] and case.seed == 1)]
    rows = {case: row for case, row in rows.items() if case.experiment != EXPERIMENTS[1] or case.policy != "lor"}
    runs = Runs(rows)
    assert runs.seeds[EXPERIMENTS[0]] == [0]
    assert runs.seeds[EXPERIMENTS[2]] == [0, 1]
    assert EXPERIMENTS[1] not in runs.experiments
    assert "; seed 0)" in tables(runs)
    assert "; seeds 0, 1)" in tables(runs)


def test_tables_go_between_the_markers_and_nothing_else_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n", encoding="utf-8")
    write_tables(_rows(), page)
    once = page.read_text(encoding="utf-8")
    assert once.startswith(f"before\n\n{BEGIN}\n")
    assert once.endswith(f"{END}\n\nafter\n")
    assert "old" not in once
    write_tables(_rows(), page)
    assert page.read_text(encoding="utf-8") == once


def test_a_page_without_markers_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("mine\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no markers"):
        write_tables(_rows(), page)
    assert page.read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_arrivals_come_at_the_load_of_the_experiment(experiment):
    arrivals = workload_of(experiment, 2000, 0)
    capacity = capacity_per_s(experiment, arrivals.prompt_tokens, arrivals.output_tokens)
    half = len(arrivals) // 2
    assert half / arrivals.arrival_s[half] == pytest.approx(experiment.load * capacity, rel=0.1)
    later = (arrivals.arrival_s[-1] - arrivals.arrival_s[half]) / (half - 1)
    assert 1.0 / later == pytest.approx(experiment.shift * experiment.load * capacity, rel=0.1)


def test_ratios_of_prompt_and_output_are_constant():
    by_name = {one.name: workload_of(one, 500, 0) for one in EXPERIMENTS}
    for name, ratio in (("kv-1-4", 0.25), ("kv-4-1", 4.0)):
        longer = by_name[name].output_tokens > 100
        shares = by_name[name].prompt_tokens[longer] / by_name[name].output_tokens[longer]
        assert shares.min() == pytest.approx(ratio, rel=0.05)
        assert shares.max() == pytest.approx(ratio, rel=0.05)
