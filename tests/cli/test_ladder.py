import json

import pytest

from bidroute.cli import main

SMALL = [
    *("--trace", "builtin:azure-conv-like", "--requests", "60", "--devices", "2", "--kv-tokens", "20000"),
    *("--seeds", "1", "--jobs", "1"),
]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("ladder", ["--binds", "kv", "--lengths", "none", "--html"]),
        ("robustness", ["--cases", "device lost,all at once", "--policies", "fifo+safety"]),
    ],
)
def test_a_small_run_prints_writes_and_goes_on_from_its_journal(command, options, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "out.json"
    if options[-1] == "--html":
        options = [*options, str(tmp_path / "out.html")]
    arguments = [command, *SMALL, *options, "--json", str(file)]
    assert main(arguments) == 0
    output, first = capsys.readouterr().out, json.loads(file.read_text())
    assert max(map(len, output.splitlines())) <= max(100, len(str(tmp_path)) + 30)
    assert "builtin:azure-conv-like" in output
    runs = len((tmp_path / f"bidroute-{command}.jsonl").read_text().splitlines())
    assert main(arguments) == 0
    assert len((tmp_path / f"bidroute-{command}.jsonl").read_text().splitlines()) == runs > 0
    second = json.loads(file.read_text())
    assert {**first, "command": ""} == {**second, "command": ""}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ladder", "--binds", "disk"], "binds 'disk'"),
        (["ladder", "--lengths", "psychic"], "lengths 'psychic'"),
        (["ladder", "--load", "0"], "load: 0"),
        (["ladder", "--trace", "absent.csv"], "absent.csv"),
        (["ladder", "--jobs", "0"], "jobs: 0"),
        (["ladder", "--json", "/absent/out.json"], "/absent/out.json"),
        (["robustness", "--cases", "earthquake"], "case 'earthquake' is unknown"),
        (["robustness", "--cases", ","], "no trace or no case"),
        (["robustness", "--policies", "nothing"], "policy 'nothing' is unknown"),
        (["robustness", "--mode", "disaggregated:1", "--cases", "device lost"], "expected mode decode or aggregated"),
        (["robustness", "--seeds", "0"], "seeds: 0"),
    ],
)
def test_bad_input_gives_one_line(arguments, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, *(["--jobs", "1"] if "--jobs" not in arguments else [])]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["ladder.climb", "robustness.run_cases"])
def test_an_interrupt_says_where_the_finished_runs_are(name, monkeypatch, capsys, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"bidroute.cli.{name}", interrupted)
    command = name.partition(".")[0]
    assert main([command]) == 130
    assert f"finished runs are kept in bidroute-{command}.jsonl" in capsys.readouterr().err
