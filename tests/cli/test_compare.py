import csv
import json

import pytest

from bidroute.cli import main

SMALL = ["--requests", "60", "--kv-tokens", "20000", "--devices", "2", "--seeds", "2", "--jobs", "1"]
FAST = ["--policies", "round_robin,join_shortest_queue"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    files = {kind: folder / f"out.{kind}" for kind in ("json", "html", "csv")}
    written = ["--json", files["json"], "--html", files["html"], "--per-request", files["csv"]]
    assert main(["compare", *SMALL, *FAST, *map(str, written)]) == 0
    return files


def test_the_json_has_scenario_and_results(outputs):
    data = json.loads(outputs["json"].read_text())
    assert {(row["policy"], row["seed"]) for row in data["results"]} == {
        (policy, seed) for policy in ("round_robin", "join_shortest_queue") for seed in (0, 1)
    }
    for row in data["results"]:
        assert set(row) == {
            *("policy", "seed", "e2e_s", "ttft_s", "tpot_s", "output_tokens_per_s", "requests_per_s", "goodput"),
            *("preemptions", "wasted_tokens", "refused", "unfinished", "reward", "decision_us", "wall_s", "cpu_s"),
        }
        for latency in ("e2e_s", "ttft_s", "tpot_s"):
            assert set(row[latency]) == {"mean", "p50", "p90", "p95", "p99"}
        assert set(row["decision_us"]) == {"p50", "p99"}
    assert data["scenario"]["trace"] == "builtin:azure-conv-like"


def test_the_csv_and_the_page_are_written(outputs):
    with outputs["csv"].open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * 2 * 60
    assert outputs["html"].read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_terminal_shows_scenario_winner_and_table(capsys):
    assert main(["compare", *SMALL, *FAST]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 100
    assert "60 requests of builtin:azure-conv-like" in output
    assert "the strongest other policy here" in output.replace("\n", " ")
    assert "round_robin" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--mode", "aggregated", "--engine", "block_size=16,eviction=reserve"],
        ["--mode", "disaggregated:1"],
        ["--lengths", "noisy:0.6", "--slo", "ttft=1"],
        ["--trace", "builtin:azure-code-like"],
    ],
)
def test_other_scenarios_run(arguments, capsys):
    assert main(["compare", *SMALL, "--policies", "round_robin,join_shortest_queue", *arguments]) == 0
    assert "round_robin" in capsys.readouterr().out


def test_policies_with_options_are_shown_as_typed(capsys, tmp_path):
    file = tmp_path / "out.json"
    policies = "power_of_d,power_of_d:d=3,fifo+safety:risk_z=1:max_skips=0"
    assert main(["compare", *SMALL, "--seeds", "1", "--policies", policies, "--json", str(file)]) == 0
    output, data = capsys.readouterr().out, json.loads(file.read_text())
    assert [row["policy"] for row in data["results"]] == data["scenario"]["policies"] == policies.split(",")
    assert all(policy in output for policy in policies.split(","))


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bidroute.cli.compare.compare", interrupted)
    assert main(["compare"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
