import json
from functools import partial

import pytest

from bidroute.cli import main
from bidroute.experiments import scenario_bounds

SMALL = ["--requests", "40", "--kv-tokens", "20000", "--devices", "2"]


def test_bounds_are_shown_and_written(tmp_path, capsys):
    file = tmp_path / "bounds.json"
    assert main(["bound", *SMALL, "--steps", "2", "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    (row,) = data["bounds"]
    assert 0 < row["quick_e2e_s"] <= row["e2e_s"]
    assert row["requests"] == 40
    assert row["reward"] == pytest.approx(1.0)  # balanced: what is served is worth 1
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 100
    assert "No policy has a lower mean latency" in output.replace("\n", " ")


def test_compare_shows_multiples_of_the_bound(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bidroute.cli.compare.scenario_bounds", partial(scenario_bounds, steps=2))
    file = tmp_path / "out.json"
    run = [
        "--objective",
        "latency,throughput=0",
        "--policies",
        "round_robin,fifo+safety",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--bound",
        "--json",
        str(file),
    ]
    assert main(["compare", *SMALL, *run]) == 0
    rows = json.loads(file.read_text())["results"]
    assert all(row["e2e_over_bound"] >= 1.0 for row in rows)
    assert all(row["preemptions"] == 0 and 0.0 < row["reward_of_bound"] <= 1.0 for row in rows)
    assert "bound" in capsys.readouterr().out


def test_where_requests_are_preempted_the_bound_on_reward_grows_and_there_is_none_on_ttft(tmp_path, monkeypatch):
    monkeypatch.setattr("bidroute.cli.compare.scenario_bounds", partial(scenario_bounds, steps=2))
    file = tmp_path / "out.json"
    crowded = ["--requests", "60", "--kv-tokens", "8000", "--devices", "1", "--speedup", "60"]
    run = ["--policies", "round_robin", "--seeds", "1", "--jobs", "1", "--bound", "--json", str(file)]
    assert main(["compare", *crowded, *run]) == 0
    (row,) = json.loads(file.read_text())["results"]
    assert row["preemptions"] > 0
    assert 0.5 <= row["reward_of_bound"] < 1.0  # balanced: all were served, so without preemption it would be 1
    assert row["ttft_over_bound"] is None
    assert row["e2e_over_bound"] is None or row["e2e_over_bound"] >= 1.0


def test_other_modes_have_no_bound(capsys):
    assert main(["compare", *SMALL, "--bound", "--mode", "aggregated"]) == 2
    assert "mode decode only" in capsys.readouterr().err


def test_the_theory_is_observed(tmp_path, capsys):
    file = tmp_path / "theory.json"
    assert main(["theory", "--quick", "--part", "knapsacks", "--json", str(file)]) == 0
    assert len(json.loads(file.read_text())["knapsacks"]) == 3
    assert main(["theory", "--part", "nonsense"]) == 2
    assert "choose from: regret, knapsacks, convergence, all" in capsys.readouterr().err
