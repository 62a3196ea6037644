import json

import pytest

from bidroute.errors import BidrouteError, ConfigError
from bidroute.experiments import ScenarioSettings, finished_runs
from bidroute.experiments.comparison import run_task
from bidroute.experiments.finished_runs import SentTask, digest_of, read_journal, run_noted, run_sent
from bidroute.experiments.scenario import prepare
from bidroute.experiments.workers import local_crew


def tasks(policies=("round_robin", "join_shortest_queue"), **changes):
    experiment = prepare(ScenarioSettings(requests=30, kv_tokens=20_000, devices=2, **changes), [0])
    return [run_task(experiment, policy, 0) for policy in policies]


def noted(some, journal, on_progress=None, jobs=1):
    with local_crew(jobs) as crew:
        return run_noted(some, crew, journal, on_progress)


def test_a_second_command_takes_what_the_journal_has(tmp_path, monkeypatch):
    journal, told = tmp_path / "runs.jsonl", []
    rows = noted(tasks(), journal, lambda *one: told.append(one))
    assert told == [(1, 2, "round_robin, seed 0"), (2, 2, "join_shortest_queue, seed 0")]
    assert [json.loads(line)["policy"] for line in journal.read_text().splitlines()] == [
        "round_robin",
        "join_shortest_queue",
    ]
    monkeypatch.setattr(finished_runs, "run", None)  # nothing may run again
    told.clear()
    assert noted(tasks()[::-1], journal, lambda *one: told.append(one)) == rows[::-1]
    assert told == [(2, 2, "from the journal")]


def test_over_processes_the_journal_is_the_same(tmp_path):
    alone, several = tmp_path / "alone.jsonl", tmp_path / "several.jsonl"
    assert noted(tasks(), alone) == noted(tasks(), several, jobs=2)
    assert read_journal(alone) == read_journal(several)


def test_an_interrupt_loses_nothing_that_is_finished(tmp_path, monkeypatch):
    journal, real, ran = tmp_path / "runs.jsonl", finished_runs.run, []

    def stops_after_one(task):
        if ran:
            raise KeyboardInterrupt
        ran.append(task.policy)
        return real(task)

    monkeypatch.setattr(finished_runs, "run", stops_after_one)
    with pytest.raises(KeyboardInterrupt):
        noted(tasks(), journal)
    assert len(read_journal(journal)) == 1


def test_what_is_asked_twice_runs_once(tmp_path):
    journal = tmp_path / "runs.jsonl"
    first, second = noted(tasks(("round_robin", "round_robin")), journal)
    assert first == second
    assert len(journal.read_text().splitlines()) == 1


def test_a_torn_line_counts_as_not_there(tmp_path):
    journal = tmp_path / "runs.jsonl"
    rows = noted(tasks(), journal)
    text = journal.read_text()
    journal.write_text(text[:-20])
    assert len(read_journal(journal)) == 1
    assert noted(tasks(), journal) == rows
    assert len(read_journal(journal)) == 2


def test_what_figures_depend_on_makes_another_run():
    plain = digest_of(tasks()[0])
    assert digest_of(tasks()[0]) == plain
    others = [{"speedup": 3.0}, {"lengths": "noisy:0.6"}, {"objective": "tail"}, {"latency": "affine:0.007,5e-5,5e-8"}]
    digests = {digest_of(tasks(**change)[0]) for change in others} | {digest_of(tasks()[1])}
    assert len(digests | {plain}) == len(others) + 2


def test_other_code_is_not_mixed_in(tmp_path, monkeypatch):
    with pytest.raises(BidrouteError, match="another version of bidroute"):
        run_sent(SentTask(tasks()[0], "other"))
    plain = digest_of(tasks()[0])
    monkeypatch.setattr(finished_runs, "code_fingerprint", lambda: "other code")
    assert digest_of(tasks()[0]) != plain


@pytest.mark.parametrize("content", ["buy milk\ncall mum\n", "hello", '{"a": 1}\n', "[1]\n"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match="has no finished runs in it"):
        noted(tasks(), path)
    assert path.read_text() == content


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(ConfigError, match=r"journal .*: Is a directory"):
        noted(tasks(), tmp_path)
