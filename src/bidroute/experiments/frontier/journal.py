"""A journal of finished runs: one JSON line each, so that an interrupted search loses none of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import bidroute
from bidroute.errors import ConfigError
from bidroute.experiments.describe import describe
from bidroute.experiments.results import Row
from bidroute.experiments.scenario import Experiment

# The rooms that decide what a run gives: a change in any of them makes the figures of a journal those of other code.
_ROOMS = ("core", "lengths", "policies", "pricing", "simulator", "traces")


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the code that a run depends on."""
    package, digest = Path(bidroute.__file__).parent, hashlib.sha256()
    for room in _ROOMS:
        for file in sorted((package / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def fingerprint(experiment: Experiment) -> str:
    """A digest of all that figures depend on beside the candidate: arrivals, fleet, seeds, code."""
    described = {**describe(experiment), "objective": None}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for scenario in experiment.scenarios.values():
        for column in (scenario.workload.arrival_s, scenario.workload.prompt_tokens, scenario.workload.output_tokens):
            digest.update(column.tobytes())
    digest.update(code_fingerprint().encode())
    return digest.hexdigest()[:16]


class Journal:
    """Finished candidates by key, and a file that every new one is appended to at once."""

    def __init__(self, stream: TextIO, known: dict[str, list[Row]]) -> None:
        self._stream = stream
        self._known = known

    def get(self, key: str) -> list[Row] | None:
        """The rows of a candidate that is finished, one per seed."""
        return self._known.get(key)

    def add(self, key: str, rows: list[Row]) -> None:
        """Keep the rows of a candidate, on disk when this returns."""
        self._known[key] = rows
        self._stream.write(json.dumps({"key": key, "rows": rows}, allow_nan=False) + "\n")
        self._stream.flush()


@contextmanager
def open_journal(path: Path, experiment: Experiment) -> Iterator[Journal]:
    """Open or begin the journal of this experiment.

    Raises ConfigError where the file is no journal, or that of another scenario or of other code.
    """
    mark = fingerprint(experiment)
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        known = _read(path, text.splitlines(), mark)
        with path.open("a", encoding="utf-8") as stream:
            if not text:
                stream.write(json.dumps({"journal": mark}) + "\n")
            elif not text.endswith("\n"):  # the machine stopped in the middle of a line
                stream.write("\n")
            stream.flush()
            yield Journal(stream, known)
    except OSError as problem:
        raise ConfigError(f"journal {path}: {problem.strerror or problem}; name another with --journal") from None
    except UnicodeDecodeError:
        raise ConfigError(f"journal {path}: the file is no journal of a sweep; name another with --journal") from None


def _read(path: Path, lines: list[str], mark: str) -> dict[str, list[Row]]:
    """What is finished; a line that cannot be read was torn and counts as not there."""
    parsed = [_parse(line) for line in lines]
    if not parsed:
        return {}
    if parsed[0] is None or "journal" not in parsed[0]:
        raise ConfigError(f"journal {path}: the file is no journal of a sweep; name another with --journal")
    if parsed[0]["journal"] != mark:
        raise ConfigError(
            f"journal {path} is of another trace, fleet, set of seeds or version of the code; remove it, or name "
            "another with --journal"
        )
    return {one["key"]: one["rows"] for one in parsed[1:] if one is not None and "rows" in one}


def _parse(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
