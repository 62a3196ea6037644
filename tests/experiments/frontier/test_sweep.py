import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings, compare, finished_runs
from bidroute.experiments.frontier import SearchSettings, sweep
from bidroute.experiments.frontier.candidates import found

SMALL = ScenarioSettings(requests=60, kv_tokens=20_000, devices=2)
SEARCH = SearchSettings(knobs=["patience=1..2"], points=2, baselines=["round_robin"])


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    journal = tmp_path_factory.mktemp("sweep") / "journal.jsonl"
    return sweep(SMALL, SEARCH, seeds=2, journal=journal), journal


def test_presets_baselines_and_what_was_found_are_all_there(swept):
    kinds = [one.candidate.kind for one in swept[0].outcomes]
    assert (kinds.count("preset"), kinds.count("baseline"), kinds.count("found")) == (6, 1, 2)
    assert all(len(one.rows) == 2 for one in swept[0].outcomes)
    assert swept[0].scenario["knobs"] == [{"name": "patience", "low": 1.0, "high": 2.0, "scale": "linear"}]
    assert 1 <= len(swept[0].front) <= len(swept[0].outcomes)


def test_figures_are_those_of_compare(swept):
    comparison = compare(ScenarioSettings(requests=60, kv_tokens=20_000, devices=2, objective="tail"), ["bid_price"], 2)
    (tail,) = [one for one in swept[0].outcomes if one.candidate.label == "tail"]
    assert tail.values("e2e_s.p99").tolist() == comparison.values("bid_price", "e2e_s.p99").tolist()


def test_what_is_finished_is_not_run_again(swept, monkeypatch, tmp_path):
    monkeypatch.setattr(finished_runs, "run", lambda task: pytest.fail("ran again"))
    again = sweep(SMALL, SEARCH, seeds=2, journal=swept[1])
    assert [one.rows for one in again.outcomes] == [one.rows for one in swept[0].outcomes]


def test_an_interrupted_sweep_goes_on_where_it_stopped(swept, tmp_path):
    lines = swept[1].read_text().splitlines(keepends=True)
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(lines[:-3]))
    told = []
    again = sweep(SMALL, SEARCH, seeds=2, journal=journal, on_progress=lambda *one: told.append(one))
    assert [one.rows for one in again.outcomes] == [one.rows for one in swept[0].outcomes]
    assert [(done, total) for done, total, _ in told] == [(14, 18), (15, 18), (16, 18), (17, 18), (18, 18)]
    assert [label for _, _, label in told if label == "from the journal"] == ["from the journal"] * 2


def test_other_objectives_and_options_change_the_figures(swept):
    assert found("balanced", {"patience": 1.5}).key != found("balanced", {"patience": 1.5, "risk_z": 1.0}).key
    with pytest.raises(ConfigError, match="policy 'nobody' is unknown"):
        sweep(SMALL, SearchSettings(points=0, baselines=["nobody"]), journal=swept[1], seeds=2)


@pytest.mark.parametrize(("seeds", "jobs", "says"), [(0, 1, "seeds: 0"), (1, 0, "jobs: 0")])
def test_wrong_counts_are_refused(seeds, jobs, says):
    with pytest.raises(ConfigError, match=says):
        sweep(SMALL, SEARCH, seeds, jobs)


def test_an_interrupt_keeps_every_finished_point(tmp_path):
    """A real interrupt of the real command: exit code 130, and whole lines in the journal."""
    arguments = ["--requests", "60", "--kv-tokens", "20000", "--devices", "2", "--points", "500", "--jobs", "1"]
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"from bidroute.cli import main; sys.exit(main(['sweep', *{arguments!r}, '--journal', 'j.jsonl']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    journal = tmp_path / "j.jsonl"
    while process.poll() is None and (not journal.exists() or len(journal.read_text().splitlines()) < 4):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    finished = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len(finished) >= 4
    assert errors.decode().splitlines()[-2:] == [
        "finished runs are kept in j.jsonl; the same command goes on from there",
        "interrupted",
    ]
