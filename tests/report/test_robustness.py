import json
import re

from rich.console import Console

from bidroute.experiments.results import Comparison
from bidroute.experiments.robustness import CaseResult
from bidroute.experiments.robustness_cases import CASES
from bidroute.report.robustness import failure_sentences, robustness_data, robustness_table
from tests.report.fakes import result


def fake_results(mine=(3.0, 9.0)):
    runs = [
        result(policy, seed, (mean, p99), 1.0, 100.0, 0)
        for policy, (mean, p99) in (
            ("bid_price", mine),
            ("join_shortest_queue", (4.0, 10.0)),
            ("fifo+safety", (3.5, 8.0)),
        )
        for seed in (0, 1)
    ]
    return [CaseResult(case, "builtin:a", Comparison({}, runs), 200) for case in CASES[:2]]


def printed(table):
    console = Console(width=100, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_row_per_case_against_both():
    text = printed(robustness_table(fake_results()))
    assert re.search(r"no lengths +3.00 +−25% +9.00 +−10% fifo\+safety +−14% +\+12%", text)
    assert max(map(len, text.splitlines())) <= 100


def test_where_the_default_falls_below_is_said():
    assert failure_sentences(fake_results()) == [
        "bid_price is nowhere below join_shortest_queue on E2E mean or p99, in 2 cases."
    ]
    lines = failure_sentences(fake_results((3.0, 11.0)))
    assert lines[0] == "bid_price falls below join_shortest_queue in 2 of 4 figures:"
    assert lines[1] == "  no lengths (builtin:a): E2E p99 +10 %, every seed agrees"


def test_the_data_is_plain_json():
    data = json.loads(json.dumps(robustness_data(fake_results((3.0, 11.0))), allow_nan=False))
    assert [one["case"] for one in data["cases"]] == ["no lengths", "noise 0"]
    assert [(one["case"], one["measure"]) for one in data["below"]] == [
        ("no lengths", "e2e_s.p99"),
        ("noise 0", "e2e_s.p99"),
    ]
    assert data["cases"][0]["strongest"] == "fifo+safety"
    assert len(data["cases"][0]["runs"]) == 6
