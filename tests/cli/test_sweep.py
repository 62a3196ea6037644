import json

import pytest

from bidroute.cli import main
from tests.cli.test_errors import refused

SMALL = ["--requests", "60", "--kv-tokens", "20000", "--devices", "2", "--seeds", "1", "--jobs", "1"]
FEW = ["--points", "2", "--baselines", "round_robin"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_prints_the_front_and_writes_data_and_chart(folder, capsys):
    assert main(["sweep", *SMALL, *FEW, "--json", "out.json", "--html", "out.html"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= max(100, len(str(folder)) + 20)
    assert "On the front of E2E mean" in output
    assert "balanced" in output
    assert "its goal" in output
    data = json.loads((folder / "out.json").read_text())
    assert len(data["points"]) == 9
    assert (folder / "out.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_grid_of_named_knobs(folder, capsys):
    grid = ["--search", "grid", "--knob", "tail=10,20", "--knob", "risk_z=1..2", "--points", "6"]
    assert main(["sweep", *SMALL, *grid, "--json", "out.json"]) == 0
    found = [one["knobs"] for one in json.loads((folder / "out.json").read_text())["points"] if one["kind"] == "found"]
    assert sorted((one["tail"], one["risk_z"]) for one in found) == [(t, z) for t in (10, 20) for z in (1, 1.5, 2)]


def test_a_recommendation_is_printed_to_be_typed(folder, capsys):
    assert main(["recommend", "--goal", "e2e_p99<60", *SMALL, "--points", "2", "--json", "out.json"]) == 0
    output = capsys.readouterr().out
    data = json.loads((folder / "out.json").read_text())
    assert f"\n--objective {data['objective']}\n" in output
    assert "join_shortest_queue" in output
    assert data["goal"] == "e2e_p99<60, min e2e_mean"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sweep", "--knob", "speed"], "knob 'speed' is unknown"),
        (["sweep", "--search", "luck"], "search 'luck' is unknown"),
        (["sweep", "--search", "grid"], "the grid has"),
        (["sweep", "--points", "-1"], "points: -1"),
        (["sweep", "--search-seed", "-1"], "--search-seed"),
        (["sweep", "--jobs", "0"], "jobs: 0"),
        (["sweep", "--seeds", "0"], "seeds: 0"),
        (["sweep", "--journal", "/absent/j.jsonl"], "/absent/j.jsonl"),
        (["sweep", "--baselines", "nobody", *SMALL], "policy 'nobody' is unknown"),
        (["sweep", "--json", "x", "--html", "x"], "--json and --html are both x"),
        (["recommend"], "goal"),
        (["recommend", "--goal", "fast"], "goal 'fast': expected NAME<NUMBER"),
        (["recommend", "--goal", "min e2e_mean", "--points", "-1"], "points: -1"),
        (["recommend", "--goal", "min e2e_mean", "--trace", "absent.csv"], "absent.csv"),
    ],
)
def test_wrong_input_is_one_line(folder, arguments, says, capsys):
    assert says in refused(arguments, capsys)
