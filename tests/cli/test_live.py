"""`bidroute worker` and `bidroute replay` as processes, and their errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bidroute.cli import main

WORKER = ["worker", "--port", "0", "--latency", "affine:0.002,0,0", "--time-scale", "4"]


def test_a_worker_a_replay_and_a_clean_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    with subprocess.Popen([sys.executable, "-m", "bidroute", *WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        url = worker.stdout.readline().split()[-1]
        arguments = ["replay", "--target", url, "--scrape", url, "--requests", "12", "--rate", "30", "--seeds", "2"]
        assert main([*arguments, "--label", "alone", "--json", str(out)]) == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
    shown = capsys.readouterr().out
    assert "alone" in shown
    assert "12 requests of builtin:azure-conv-like" in shown
    results = json.loads(out.read_text())["results"]
    assert [(row["seed"], row["refused"] + row["unfinished"]) for row in results] == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "--kv-tokens", "8"], "at least one block"),
        (["worker", "--batch-slots", "0"], "--batch-slots 0"),
        (["worker", "--max-model-len", "99999"], "--max-model-len 99999"),
        (["worker", "--max-batched-tokens", "8"], "--max-batched-tokens 8"),
        (["worker", "--time-scale", "0"], "--time-scale 0"),
        (["worker", "--max-num-queued-reqs", "-1"], "--max-num-queued-reqs -1"),
        (["worker", "--latency", "abacus"], "'abacus' is unknown"),
        (["worker", "--prefill", "affine:1"], "affine:1"),
        (["worker", "--port", "70000"], "--port"),
        (["worker", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8101"),
        (["replay"], "--target"),
        (["replay", "--target", "here"], "address 'here'"),
        (["replay", "--target", "http://127.0.0.1:1"], "cannot begin against"),
        (["replay", "--target", "http://127.0.0.1:1", "--seeds", "0"], "seeds: 0"),
        (["replay", "--target", "http://127.0.0.1:1", "--rate", "1", "--speedup", "1"], "give one"),
        (["replay", "--target", "http://127.0.0.1:1", "--trace", "absent.csv"], "absent.csv"),
        (["replay", "--target", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE"),
        (["replay", "--target", "http://127.0.0.1:1", "--json", "/absent/out.json"], "/absent/out.json"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
