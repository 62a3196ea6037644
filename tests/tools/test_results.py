import json

import pytest
from tools.results.__main__ import run
from tools.results.making import MANIFEST, Plan, arguments, make, shown
from tools.results.sections import SECTIONS, Command, Section, chosen

COMMANDS = [command for section in SECTIONS for command in section.commands]


def test_names_are_file_names_and_none_is_taken_twice():
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)


def test_the_trace_has_one_name_wherever_it_is(tmp_path, monkeypatch):
    """What is printed is for everybody to read, and does not tell where the trace was."""
    command, mine, ran = next(one for one in COMMANDS if one.needs_trace), tmp_path / "mine.csv", []
    mine.write_text("the trace", encoding="utf-8")
    monkeypatch.setattr("tools.results.making.main", lambda words: ran.append(words) or 0)
    for _ in range(2):
        make([Section("Traces", (command,))], Plan(tmp_path / "results", mine))
    assert "mine.csv" not in shown(command, Plan(tmp_path))
    assert len(ran) == 1
    assert ran[0][ran[0].index("--trace") + 1] == "azure_conv.csv"
    assert (tmp_path / "results" / "azure_conv.csv").read_text(encoding="utf-8") == "the trace"


def test_small_ones_run_little():
    plan = Plan(None, small=True)
    words = arguments(Command("a", "compare --requests 6000 --policies fifo"), plan)
    assert words == ["compare", "--requests", "60", "--policies", "fifo", "--seeds", "1", "--jobs", "1"]
    assert arguments(Command("a", "theory --part regret"), plan) == ["theory", "--part", "regret"]


def test_a_small_version_of_every_kind_of_command_is_made(tmp_path, capsys):
    """All that runs without a trace, one of each section's commands."""
    names = ",".join(section.commands[0].name for section in SECTIONS if not section.commands[0].needs_trace)
    wanted = f"{names},azure-kv-noisy"
    assert run(["--small", "--folder", str(tmp_path / "results"), "--only", wanted]) == 0
    output = capsys.readouterr().out
    assert "azure-kv-noisy: skipped, needs the Azure conversation trace; say make results AZURE_CONV=FILE" in output
    page = (tmp_path / "results" / "README.md").read_text(encoding="utf-8")
    assert "Not made: needs a trace that is not here." in page
    for name in names.split(","):
        text = (tmp_path / "results" / f"{name}.txt").read_text(encoding="utf-8")
        assert text in page
        assert json.loads((tmp_path / "results" / f"{name}.json").read_text())
    manifest = json.loads((tmp_path / "results" / MANIFEST).read_text())
    assert set(manifest) == set(names.split(","))
    assert all(one["commit"] and one["command"].startswith("bidroute ") for one in manifest.values())


def test_what_is_there_is_not_made_again(tmp_path, monkeypatch):
    section = Section("Small", (Command("one", "compare --requests 60 --seeds 1 --policies round_robin"),))
    assert make([section], Plan(tmp_path)) == []
    monkeypatch.setattr("tools.results.making.main", lambda words: pytest.fail("ran again"))
    make([section], Plan(tmp_path))


def test_a_command_that_fails_ends_it_with_its_name(tmp_path, capsys, monkeypatch):
    broken = (Section("Broken", (Command("one", "compare --seeds 0"),)),)
    monkeypatch.setattr("tools.results.__main__.SECTIONS", broken)
    assert run(["--folder", str(tmp_path)]) == 2
    assert "error: bidroute compare --seeds 0" in capsys.readouterr().err


def test_wrong_names_and_files_are_one_line(tmp_path, capsys):
    assert run(["--only", "nothing"]) == 2
    assert "no command is called 'nothing'; choose from: defaults" in capsys.readouterr().err
    assert run(["--azure-conv", str(tmp_path / "absent.csv")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert chosen(SECTIONS, "defaults")[0].title == "The defaults"
