import json

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings
from bidroute.experiments.frontier.journal import fingerprint, open_journal
from bidroute.experiments.scenario import prepare

SMALL = ScenarioSettings(requests=60, kv_tokens=20_000, devices=2)
ROWS = [{"e2e_s": {"mean": 1.5}}]


@pytest.fixture(scope="module")
def experiment():
    return prepare(SMALL, [0])


def test_what_is_added_is_there_again(tmp_path, experiment):
    path = tmp_path / "journal.jsonl"
    with open_journal(path, experiment) as journal:
        assert journal.get("a") is None
        journal.add("a", ROWS)
        assert len(path.read_text().splitlines()) == 2  # on disk at once
    with open_journal(path, experiment) as journal:
        assert journal.get("a") == ROWS


def test_a_torn_line_counts_as_not_there(tmp_path, experiment):
    path = tmp_path / "journal.jsonl"
    with open_journal(path, experiment) as journal:
        journal.add("a", ROWS)
        journal.add("b", ROWS)
    path.write_text(path.read_text()[:-10])
    with open_journal(path, experiment) as journal:
        assert (journal.get("a"), journal.get("b")) == (ROWS, None)
        journal.add("c", ROWS)
    with open_journal(path, experiment) as journal:
        assert journal.get("c") == ROWS


def test_a_journal_of_something_else_is_refused(tmp_path, experiment, monkeypatch):
    path = tmp_path / "journal.jsonl"
    with open_journal(path, experiment):
        pass
    others = [prepare(SMALL, [1]), prepare(ScenarioSettings(requests=60, kv_tokens=20_001, devices=2), [0])]
    for other in others:
        with pytest.raises(ConfigError, match="of another trace, fleet"), open_journal(path, other):
            pass
    monkeypatch.setattr("bidroute.experiments.frontier.journal.code_fingerprint", lambda: "other code")
    with pytest.raises(ConfigError, match="version of the code"), open_journal(path, experiment):
        pass


@pytest.mark.parametrize("content", ["hello\n", '{"a": 1}\n', "[1]\n"])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path, experiment, content):
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match="no journal of a sweep"), open_journal(path, experiment):
        pass
    assert path.read_text() == content


def test_a_folder_is_refused(tmp_path, experiment):
    with pytest.raises(ConfigError, match="name another with --journal"), open_journal(tmp_path, experiment):
        pass


def test_the_objective_asked_for_is_no_part_of_the_fingerprint(experiment):
    other = prepare(ScenarioSettings(requests=60, kv_tokens=20_000, devices=2, objective="tail"), [0])
    assert fingerprint(other) == fingerprint(experiment)
    assert json.dumps(fingerprint(experiment))
