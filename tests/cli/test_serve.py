"""`bidroute serve`: what its options mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bidroute.cli import main
from bidroute.cli.serve import merged, parsed_worker
from bidroute.errors import ConfigError

NO_HTTP: dict[str, Any] = {"host": None, "port": None, "trusted_hints": None, "api_keys": ()}


def test_a_worker_with_all_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_KEY", "k")
    worker = parsed_worker(
        "http://h:1,slots=16,kv_tokens=8192,block_size=32,token_budget=2048,name=a,api_key_env=WORKER_KEY"
    )
    assert (worker.url, worker.name, worker.batch_slots) == ("http://h:1", "a", 16)
    assert (worker.kv_tokens, worker.block_size, worker.token_budget, worker.api_key) == (8192, 32, 2048, "k")


@pytest.mark.parametrize(
    "text", ["http://h,slots=many", "http://h,slots=0", "http://h,colour=red", "http://h,slots", "ftp://h"]
)
def test_bad_workers_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as problem:
        merged(None, [text], {}, NO_HTTP)
    assert "\n" not in str(problem.value)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("workers: [{url: http://h:1}]\nobjective: tail\nhttp: {port: 9000, max_attempts: 5}\n")
    plain = merged(path, [], {"policy": None}, NO_HTTP)
    assert (plain.http.port, plain.http.max_attempts, plain.objective, plain.workers[0].url) == (
        9000,
        5,
        "tail",
        "http://h:1",
    )
    given = merged(path, ["http://h:2"], {"objective": "ttft"}, NO_HTTP | {"port": 0, "trusted_hints": ["priority"]})
    assert (given.http.port, given.http.max_attempts, given.objective) == (0, 5, "ttft")
    assert [worker.url for worker in given.workers] == ["http://h:2"]
    assert given.http.trusted_hints == ("priority",)


def test_prefill_workers_have_the_same_options(tmp_path: Path) -> None:
    settings = merged(None, ["http://h:1"], {}, NO_HTTP, ["http://p:1,slots=8,name=p"])
    assert [(worker.name, worker.role, worker.batch_slots) for worker in settings.prefill] == [("p", "prefill", 8)]
    assert [worker.role for worker in settings.workers] == ["both"]
    path = tmp_path / "fleet.yaml"
    path.write_text("workers: [http://h:1, {url: http://h:2, role: prefill}]\nprefill: [http://p:1]\nkv_lease_s: 12\n")
    read = merged(path, [], {}, NO_HTTP)
    assert [worker.url for worker in read.workers] == ["http://h:1"]
    assert [(worker.url, worker.role) for worker in read.prefill] == [
        ("http://h:2", "prefill"),
        ("http://p:1", "prefill"),
    ]
    assert read.kv_lease_s == 12.0
    with pytest.raises(ConfigError, match="given twice"):
        merged(None, ["http://h:1"], {}, NO_HTTP, ["http://h:1,name=p"])
    with pytest.raises(ConfigError, match="--prefill http://p: 'slots' is not"):
        merged(None, ["http://h:1"], {}, NO_HTTP, ["http://p,slots"])


@pytest.mark.parametrize(
    "arguments", [[], ["--worker", "http://h", "--host", "0.0.0.0"], ["--worker", "http://h", "--trust", "me"]]
)
def test_bad_input_ends_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert "bidroute serve --worker" in capsys.readouterr().out
