import json
import re

from rich.console import Console

from bidroute.experiments.frontier.goals import parse_goal
from bidroute.experiments.frontier.recommend import Compared, Recommendation
from bidroute.report.frontier_html import sweep_page, write_sweep_html
from bidroute.report.frontier_tables import front_sentence, front_table, hidden_rows, standings_table, sweep_data
from bidroute.report.recommendations import (
    recommendation_data,
    recommendation_sentences,
    recommendation_table,
    recommended_options,
)
from tests.experiments.frontier.fakes import fake_sweep, outcome
from tests.report.fakes import SCENARIO


def printed(table):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_sentence_counts_what_is_on_the_front():
    assert front_sentence(fake_sweep()) == (
        "On the front of E2E mean, E2E p99, TTFT p99, tokens/s, goodput: 2 of 2 settings found, 1 of 2 presets, 0 of 1 "
        "baselines."
    )


def test_the_table_has_the_front_the_presets_and_the_baselines():
    lines = printed(front_table(fake_sweep())).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["patience=2", "patience=1.1", "latency", "tail", "round_robin"]
    assert ["●" in line for line in lines[2:]] == [True, True, False, True, False]
    assert hidden_rows(fake_sweep()) == 0


def test_presets_are_shown_by_their_own_goals():
    latency = printed(standings_table(fake_sweep())).splitlines()[1]
    cells = latency.replace("\N{NO-BREAK SPACE}", " ").split()
    assert cells == ["latency", "E2E", "mean", "3.50", "2.00", "75", "%", "patience=1.1"]


def test_the_data_says_who_beats_whom():
    data = json.loads(json.dumps(sweep_data(fake_sweep()), allow_nan=False))
    assert [point["label"] for point in data["points"]][:2] == ["patience=2", "tail"]
    beaten = {point["label"]: point["dominated_by"] for point in data["points"]}
    assert beaten == {
        "patience=2": None,
        "tail": None,
        "patience=1.1": None,
        "latency": "patience=1.1",
        "round_robin": "patience=2",
    }
    assert data["presets"][0]["best_objective"] == "balanced,patience=2"


def test_the_page_is_one_offline_file_with_every_point(tmp_path):
    page = sweep_page(fake_sweep())
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="http', page)
    data = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.S)[1].replace("<\\/", "</"))
    assert [point["kind"] for point in data["points"]] == ["found", "preset", "found", "preset", "baseline"]
    assert data["points"][0]["command"] == "bidroute compare --policies bid_price --objective balanced,patience=2"
    assert data["measures"][0]["path"] == "e2e_s.mean"
    for name in ("front", "x-measure", "y-measure", "log", "point-detail"):
        assert f'id="{name}"' in page
    write_sweep_html(fake_sweep(), tmp_path / "front.html")
    assert (tmp_path / "front.html").read_text(encoding="utf-8") == page


def test_names_cannot_break_out_of_the_page():
    sweep = fake_sweep()
    sweep.outcomes.append(outcome(9.0, 9.0, kind="baseline", name="</script><b>x"))
    sweep.dominated_by.append(None)
    assert "<b>x" not in sweep_page(sweep).split("<body>")[1].split('id="report-data"')[0]


def advice(goal, chosen, default, baseline, *, same=False):
    default = Compared(*(outcome(*one, kind="preset", name="balanced") for one in default))
    return Recommendation(
        goal=parse_goal(goal),
        chosen=default if same else Compared(*(outcome(*one, value=2.0) for one in chosen)),
        default=default,
        baseline=Compared(*(outcome(*one, kind="baseline", name="join_shortest_queue") for one in baseline)),
        runner_up=Compared(*(outcome(*one, value=2.0) for one in chosen)) if same else None,
        settings=38,
        parts=("requests 0 to 59", "requests 60 to 99, held out"),
        scenario=dict(SCENARIO),
    )


FIGURES = {"chosen": [(2, 10), (3, 12)], "default": [(4, 9), (6, 11)], "baseline": [(8, 20), (12, 24)]}


def test_a_recommendation_in_words():
    one = advice("e2e_p99<15, min e2e_mean", **FIGURES)
    text = " ".join(recommendation_sentences(one)).replace("\N{NO-BREAK SPACE}", " ")
    assert "Goal: e2e_p99<15, min e2e_mean. 38 settings tried on requests 0 to 59; checked on requests 60" in text
    assert "Every limit holds, on both parts and for every seed." in text
    assert "against balanced E2E p99 +9.1 %, E2E mean −50 %; against join_shortest_queue E2E p99 −50 %" in text
    assert recommended_options(one) == "--objective balanced,patience=2"
    lines = printed(recommendation_table(one)).splitlines()
    assert lines[2].split() == ["recommended", "10.0", "2.00", "12.0", "3.00"]
    assert recommendation_data(one)["reached"] == {"searched": True, "held_out": True}
    json.dumps(recommendation_data(one), allow_nan=False)


def test_a_goal_out_of_reach_is_said_to_be():
    text = " ".join(recommendation_sentences(advice("e2e_p99<5", **FIGURES)))
    assert "No setting tried reaches the goal. The closest is recommended: E2E p99 10.0 against 5;" in text
    text = " ".join(recommendation_sentences(advice("e2e_p99<11", **FIGURES)))
    assert "holds where it was searched, but not held out: E2E p99 12.0 against 11." in text


def test_a_default_that_is_no_worse_is_recommended():
    one = advice("min e2e_p99", **FIGURES, same=True)
    assert "no better than the default on what was held out" in " ".join(recommendation_sentences(one))
    names = [line.rsplit(None, 2)[0].strip() for line in printed(recommendation_table(one)).splitlines()[2:]]
    assert names == ["recommended: the default", "found, not recommended", "join_shortest_queue"]
    assert recommended_options(one) == "--objective balanced"
