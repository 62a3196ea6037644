import json

from bidroute.cli import main

CROWDED = ["--requests", "60", "--kv-tokens", "20000", "--devices", "1", "--speedup", "50", "--policy", "fifo+safety"]


def test_it_explains_the_request_held_longest(capsys, tmp_path):
    path = tmp_path / "why.json"
    assert main(["explain", *CROWDED, "--json", str(path)]) == 0
    output = capsys.readouterr().out
    assert "the one held longest" in output
    assert "held: " in output
    assert "released to 0" in output
    data = json.loads(path.read_text())
    assert set(data) == {"scenario", "request", "epochs"}
    assert set(data["epochs"][0]) >= {"now_s", "wait_s", "reward", "price", "held_by", "instead", "rank", "waiting"}


def test_it_explains_the_request_asked_for(capsys):
    assert main(["explain", *CROWDED, "--request", "3"]) == 0
    assert "request 3 (asked for)" in capsys.readouterr().out


def test_a_request_outside_the_run_is_an_error(capsys):
    assert main(["explain", *CROWDED, "--request", "60"]) == 2
    assert capsys.readouterr().err == "error: request 60; this run has requests 0 to 59\n"
