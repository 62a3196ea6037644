"""Many runs, each finished one noted at once in a journal, so that an interrupted command goes on where it was.

The journal has one JSON line per run. A run is found again by a digest of all that its figures depend on: arrivals,
lengths and predictions, fleet and engines, policy and objective, and the code. What is not asked for is left alone, so
one journal may serve several commands.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import bidroute
from bidroute.core.queue import FloatArray
from bidroute.errors import BidrouteError, ConfigError
from bidroute.experiments.results import Row
from bidroute.experiments.run import RunTask, run
from bidroute.experiments.workers import Crew, Progress
from bidroute.simulator import Scenario

_ROOMS = ("core", "lengths", "policies", "pricing", "simulator")  # the code that decides what a run gives
_BEGINNING = '{"run": "'  # of every line of a journal
_OF_THE_MACHINE = ("decision_us", "wall_s", "cpu_s")  # figures that differ from run to run


@dataclass(frozen=True, slots=True)
class SentTask:
    """A run as it goes to another process or machine; `code` is that of who sends it."""

    task: RunTask
    code: str


def run_noted(
    tasks: Sequence[RunTask], crew: Crew, journal: Path | None = None, on_progress: Progress | None = None
) -> list[Row]:
    """The rows of the tasks, in order. What the journal has is not run again, and what is asked twice runs once.

    Raises ConfigError where the journal cannot be written, or is none.
    """
    digests = [digest_of(task) for task in tasks]
    wanted = dict(zip(digests, tasks, strict=True))
    with _opened(journal) as (known, note):
        missing = [digest for digest in wanted if digest not in known]
        done = len(wanted) - len(missing)
        if done and on_progress is not None:
            on_progress(done, len(wanted), "from the journal")
        for place, row in crew.each(run_sent, [SentTask(wanted[digest], code_fingerprint()) for digest in missing]):
            task = wanted[missing[place]]
            known[missing[place]] = row
            note({"run": missing[place], "policy": task.policy, "seed": task.seed, "row": row})
            done += 1
            if on_progress is not None:
                on_progress(done, len(wanted), f"{task.policy}, seed {task.seed}")
    return [known[digest] for digest in digests]


def run_sent(sent: SentTask) -> Row:
    """The row of a run, without what differs from run to run. Raises BidrouteError on a machine with other code."""
    if sent.code != code_fingerprint():
        raise BidrouteError("a machine of the cluster has another version of bidroute; install the same everywhere")
    return {name: value for name, value in run(sent.task).row.items() if name not in _OF_THE_MACHINE}


@contextmanager
def _opened(path: Path | None) -> Iterator[tuple[dict[str, Row], Callable[[dict[str, Any]], None]]]:
    """The rows of a journal by digest, and how to note a line, on disk when that returns; without one, nowhere."""
    if path is None:
        yield {}, lambda line: None
        return
    known = read_journal(path)
    with path.open("a", encoding="utf-8") as stream:

        def note(line: dict[str, Any]) -> None:
            stream.write(json.dumps(line, allow_nan=False) + "\n")
            stream.flush()

        yield known, note


def read_journal(path: Path) -> dict[str, Row]:
    """The rows of a journal by digest; begins it where there is none. A line that was torn counts as not there."""
    try:
        with path.open("a+", encoding="utf-8") as stream:
            stream.seek(0)
            text = stream.read()
            if text and not text.startswith(_BEGINNING):
                raise ConfigError(f"journal {path}: it has no finished runs in it; name another with --journal")
            if text and not text.endswith("\n"):  # the machine stopped in the middle of a line
                stream.write("\n")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "no text"
        raise ConfigError(f"journal {path}: {reason}; name another with --journal") from None
    lines = [_parsed(line) for line in text.splitlines()]
    return {line["run"]: line["row"] for line in lines if line is not None}


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"run", "row"} <= set(found) else None


def digest_of(task: RunTask) -> str:
    """A digest of all that the figures of a run depend on."""
    digest = hashlib.sha256(code_fingerprint().encode())
    for column in _columns(task):
        digest.update(column)
    scenario = task.scenario
    plain = (
        *(task.policy, task.seed, task.lengths, task.objective, task.slo),
        *(scenario.mode, scenario.prefill_workers, scenario.devices, scenario.engine, scenario.prefill_pool),
        *(scenario.ttft_slo_s, scenario.e2e_slo_s, scenario.changes),
    )
    digest.update(repr(plain).encode())
    return digest.hexdigest()[:24]


def _columns(task: RunTask) -> list[bytes]:
    workload = task.scenario.workload
    columns = [workload.arrival_s.tobytes(), workload.prompt_tokens.tobytes(), workload.output_tokens.tobytes()]
    columns.append(b"" if task.predicted_tokens is None else task.predicted_tokens.tobytes())
    return columns + [packed.tobytes() for packed in _latencies(task.scenario)]


def _latencies(scenario: Scenario) -> list[FloatArray]:
    decode = scenario.latency if isinstance(scenario.latency, tuple) else (scenario.latency,)
    prefill = scenario.prefill if isinstance(scenario.prefill, tuple) else (scenario.prefill,)
    return [model.packed for model in (*decode, *prefill) if model is not None]


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the code that decides what a run gives."""
    package, digest = Path(bidroute.__file__).parent, hashlib.sha256()
    for room in _ROOMS:
        for file in sorted((package / room).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
