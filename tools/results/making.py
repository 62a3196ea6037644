"""Running the commands of the sections into a folder, and writing the page that shows what they printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from bidroute.cli import main
from bidroute.experiments.benchmarks import machine
from bidroute.experiments.finished_runs import code_fingerprint
from tools.results.pictures import take
from tools.results.sections import AZURE_CONV, FLEETS, Command, Section

MANIFEST = "manifest.json"
PAGE = "README.md"
TRACE_NAME = "azure_conv.csv"  # what the user's copy of the trace is called in the folder
SMALL = {"--requests": "60", "--seeds": "1", "--points": "1", "--jobs": "1"}  # what a small version runs
_FEW_RUNS = ("--requests", "--seeds", "--jobs")
_SMALL_IS_FEW = {
    "compare": _FEW_RUNS,
    "ladder": _FEW_RUNS,
    "robustness": _FEW_RUNS,
    "bound": ("--requests", "--seeds"),
    "sweep": tuple(SMALL),
    "recommend": tuple(SMALL),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the results go, the user's copy of the trace (None: there is none), and whether to make small ones."""

    folder: Path
    azure_conv: Path | None = None
    small: bool = False


class FailedError(Exception):
    """A command ended with an error; the message has what it said."""


def make(sections: Sequence[Section], plan: Plan) -> list[str]:
    """Run what is not there yet, one command after the other, and write the page; returns what was skipped, and why.

    A command whose files were made by the same code, typed the same, is not run again: an interrupt loses only the
    command under way, and of a sweep not even that. Raises FailedError where a command fails.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    for name, text in FLEETS.items():
        (plan.folder / name).write_text(text, encoding="utf-8")
    manifest = _manifest(plan.folder)
    if plan.azure_conv is not None:
        trace = plan.folder / TRACE_NAME
        trace.unlink(missing_ok=True)
        trace.symlink_to(plan.azure_conv.resolve())  # so that what is printed does not depend on where yours is
    skipped = []
    commands = [command for section in sections for command in section.commands]
    for number, command in enumerate(commands, start=1):
        where = f"[{number}/{len(commands)}] {command.name}"
        if command.needs_trace and plan.azure_conv is None:
            skipped.append(f"{command.name}: needs the Azure conversation trace; say make results AZURE_CONV=FILE")
            print(f"{where}: skipped, {skipped[-1].partition(': ')[2]}", flush=True)
        elif _is_made(command, plan, manifest):
            print(f"{where}: is there already", flush=True)
        else:
            print(f"{where}: {shown(command, plan)}", flush=True)
            manifest[command.name] = _run(command, plan)
            _write(plan.folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        _write(plan.folder / PAGE, page(sections, plan, manifest))
    return skipped


def page(sections: Sequence[Section], plan: Plan, manifest: dict[str, Any]) -> str:
    """The page: what made it, then for every section its commands, what they printed, and links to their files."""
    where = machine()
    parts = [
        "# Results, as printed\n",
        "Made by `make results`. Every block is the output of the command above it; runs use seeds 0 to N-1, where N "
        "is its `--seeds` (where not said 3 for `compare`, 2 for `sweep` and `recommend`, 1 for `bound`). The data and "
        "charts linked are made with it; the repository keeps only this page and its pictures.\n",
        f"Processor: {where['processor']}, {where['cores']} cores; Python {where['python']}, numpy {where['numpy']}, "
        f"numba {where['numba']}.\n",
    ]
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts += [_block(command, plan, manifest.get(command.name)) for command in section.commands]
    return "\n".join(parts)


def shown(command: Command, plan: Plan) -> str:
    """The command as the page shows it, and as it runs in the folder."""
    return shlex.join(["bidroute", *arguments(command, plan)])


def arguments(command: Command, plan: Plan) -> list[str]:
    """What follows `bidroute`; in a small version with few requests, seeds and points."""
    words = [TRACE_NAME if word == AZURE_CONV else word for word in shlex.split(command.typed)]
    if plan.small:
        for option in _SMALL_IS_FEW.get(words[0], ()):
            if option in words:
                words[words.index(option) + 1] = SMALL[option]
            else:
                words += [option, SMALL[option]]
    return words


def _run(command: Command, plan: Plan) -> dict[str, Any]:
    """Run a command in the folder, keep what it prints and writes; returns its line of the manifest."""
    outputs = ["--json", f"{command.name}.json"]
    outputs += ["--html", f"{command.name}.html"] if command.charts else []
    words = [*arguments(command, plan), *outputs]
    started, printed = perf_counter(), io.StringIO()
    with _inside(plan.folder), _called(words), contextlib.redirect_stdout(printed):
        code = main(words)
    if code == 130:
        raise KeyboardInterrupt
    if code != 0:
        raise FailedError(f"bidroute {shlex.join(words)} ended with {code}; its message is above")
    if command.picture_px:
        take(plan.folder / f"{command.name}.html", command.picture_px, plan.folder / f"{command.name}.png")
    lines = [line.rstrip() for line in printed.getvalue().splitlines() if not line.startswith(("chart:", "report:"))]
    _write(plan.folder / f"{command.name}.txt", "\n".join(lines).rstrip() + "\n")
    return {
        "command": shown(command, plan),
        "code": code_fingerprint(),
        "commit": commit(),
        "seconds": round(perf_counter() - started, 1),
    }


def _is_made(command: Command, plan: Plan, manifest: dict[str, Any]) -> bool:
    made = manifest.get(command.name)
    return (
        made is not None
        and made["code"] == code_fingerprint()
        and made["command"] == shown(command, plan)
        and (plan.folder / f"{command.name}.txt").is_file()
    )


def _block(command: Command, plan: Plan, made: dict[str, Any] | None) -> str:
    text = f"```console\n{shown(command, plan)}\n```\n\n"
    if made is None:
        reason = "needs a trace that is not here" if command.needs_trace and plan.azure_conv is None else "not run yet"
        return f"{text}Not made: {reason}.\n"
    printed = (plan.folder / f"{command.name}.txt").read_text(encoding="utf-8")
    picture = f"{command.name}.png"
    shown_picture = f"\n![{command.name}]({picture})\n" if (plan.folder / picture).is_file() else ""
    links = f"[data]({command.name}.json)" + (f", [chart]({command.name}.html)" if command.charts else "")
    return f"{text}```text\n{printed}```\n\nCommit {made['commit']}; {made['seconds']:g} s; {links}.\n{shown_picture}"


def commit() -> str:
    """The commit that is checked out, with `+changes` where files differ from it; `unknown` outside a repository."""
    root = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """In that folder, where the fleets are and the journals stay."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _called(words: list[str]) -> Iterator[None]:
    """With the words on the command line, where commands look for how they were typed."""
    before, sys.argv = sys.argv, ["bidroute", *words]
    try:
        yield
    finally:
        sys.argv = before
