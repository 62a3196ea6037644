import json
import re

import pytest
from rich.console import Console

from bidroute.experiments.ladder import RUNGS, Cell, Ladder, LadderSettings
from bidroute.experiments.results import Comparison
from bidroute.report.ladder import E2E_MEAN, E2E_P99, cell_table, ladder_data, ladder_sentences, worth_table
from bidroute.report.ladder_figures import climb_figure
from bidroute.report.ladder_page import SHOWN, ladder_page, write_ladder_html
from tests.report.fakes import result

FLEET = {"devices": 4, "batch_slots": 128, "kv_tokens": 50_000, "requests": 200, "requests_per_s": 61.0}
# E2E mean of each rung; p99 is four times that. The fourth step changes nothing.
MEANS = (8.0, 8.0, 4.0, 4.0, 3.0, 3.0, 3.3)


def fake_ladder():
    settings = LadderSettings(traces=("builtin:a", "builtin:b"), seeds=2)
    cells = []
    for trace in settings.traces:
        for binds in settings.binds:
            for kind in settings.lengths:
                runs = [
                    result(rung.name, seed, (mean * (1 + 0.1 * seed), 4 * mean), 1.0, 100.0, 0)
                    for rung, mean in zip(RUNGS, MEANS, strict=True)
                    for seed in (0, 1)
                ]
                cells.append(Cell(trace, binds, kind, FLEET, Comparison({}, runs)))
    return Ladder(settings, cells)


@pytest.fixture(scope="module")
def page():
    return ladder_page(fake_ladder(), "bidroute ladder --seeds 2")


def printed(table, width=100):
    console = Console(width=width, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_tables_fit_and_say_what_a_step_is_worth():
    ladder = fake_ladder()
    worths = printed(worth_table(ladder, E2E_MEAN))
    assert re.search(r"least footprint +(−50% +){5}−50%", worths)
    assert re.search(r"\+ growing tail +(\+10% +){5}\+10%", worths)
    figures = printed(cell_table(ladder.cells[:3]))
    assert "dispatch on arrival  8.40±.40" in figures
    assert max(map(len, (worths + figures).splitlines())) <= 100
    assert "±" not in printed(cell_table(ladder.cells[:3], 80), 80)


def test_steps_that_are_worth_nothing_are_named():
    text = " ".join(ladder_sentences(fake_ladder()))
    assert "E2E mean, median over all that was climbed: central FIFO +0.0%, least footprint −50%" in text
    named = re.findall(r"Worth nothing that holds across what was climbed: (.*?)\.", text)
    assert named == ["central FIFO", "+ safety", "+ forecast arrivals"]


def test_the_data_has_every_run_and_every_worth():
    data = ladder_data(fake_ladder())
    json.dumps(data, allow_nan=False)
    assert len(data["runs"]) == 2 * 2 * 3 * len(RUNGS) * 2
    assert len(data["worth"]) == 2 * 3 * (len(RUNGS) - 1) * 5
    assert data["worth"][0] == {
        **{"step": "central FIFO", "measure": "e2e_s.mean", "binds": "kv", "lengths": "known"},
        **{"median": 0.0, "low": 0.0, "high": 0.0, "verdict": 0},
    }


def test_the_climb_is_relative_to_the_first_rung():
    figure = climb_figure(fake_ladder(), E2E_P99)
    assert len(figure["data"]) == 2 * 6
    for line in figure["data"]:
        assert line["y"] == [1.0, 1.0, 0.5, 0.5, 0.375, 0.375, 0.4125]
    assert sum(line["showlegend"] for line in figure["data"]) == 2


def test_the_page_is_one_offline_file(page, tmp_path):
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="http', page)
    data = json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.S).group(1).replace("<\\/", "</"))
    assert set(data["climbs"]) == {measure.path for measure in SHOWN}
    assert set(data["paths"]) == {"builtin:a", "builtin:b"}
    assert "one idea at a time: E2E mean −59%, E2E p99 −59%" in page
    assert "bidroute ladder --seeds 2" in page
    write_ladder_html(fake_ladder(), "bidroute ladder --seeds 2", tmp_path / "ladder.html")
    assert (tmp_path / "ladder.html").read_text(encoding="utf-8") == page
