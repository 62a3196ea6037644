import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bidroute.errors import BidrouteError, ConfigError
from bidroute.experiments.workers import cores, run_all

INTERRUPTED = """
import signal
from tests.experiments.test_workers import nap
from bidroute.experiments.workers import run_all
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    try:
        run_all(nap, [0.0, 60.0, 60.0], 2, lambda task: print("ready", flush=True))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def double(task):
    return 2 * task


def fail(task):
    raise ConfigError(f"task {task} is wrong")


def mark():
    time.sleep(0.2)
    Path(os.environ["MARK"]).touch()


def is_marked(task):
    return Path(os.environ["MARK"]).exists()


def die(task):
    os._exit(1)


def nap(seconds):
    time.sleep(seconds)


@pytest.mark.parametrize("jobs", [1, 2])
def test_answers_come_in_the_order_of_the_tasks(jobs):
    ended = []
    assert run_all(double, [3, 1, 2], jobs, ended.append) == [6, 2, 4]
    assert sorted(ended) == [1, 2, 3]


def test_what_comes_before_is_done_when_the_tasks_begin(tmp_path, monkeypatch):
    monkeypatch.setenv("MARK", str(tmp_path / "mark"))
    assert run_all(is_marked, [1, 2, 3], 2, lambda task: None, before=[mark]) == [True] * 3


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_reaches_the_caller(jobs):
    with pytest.raises(ConfigError, match="is wrong"):
        run_all(fail, [1, 2], jobs, lambda task: None)


def test_a_killed_process_is_reported():
    with pytest.raises(BidrouteError, match="a worker process was killed"):
        run_all(die, [1, 2], 2, lambda task: None)


def test_an_interrupt_ends_all_processes_at_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert (output, errors, process.returncode) == ("interrupted\n", "", 0)


def test_there_is_a_core():
    assert cores() >= 1
