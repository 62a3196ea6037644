"""A watched YAML file: what changes in its list of workers is done to the running fleet.

    workers:
      - http://10.0.0.1:8000            # a URL alone, or settings
      - url: http://10.0.0.2:8000
        name: h100
        batch_slots: 256
        kv_tokens: 400000
        drain: true                     # sends it nothing new
    prefill:                            # likewise, for workers that only process prompts
      - http://10.0.0.3:8000

A new entry is added, one that is gone is removed after its last request, a changed `batch_slots` or `kv_tokens` is a
resize, any other change removes the old worker and adds the new one. Workers from elsewhere are not touched. A file
that cannot be read or understood is reported, and the fleet stays as it is until a good one comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bidroute.errors import BidrouteError, ConfigError
from bidroute.router.fleet_admin import FleetAdmin, worker_name
from bidroute.router.settings import worker_row
from bidroute.router.workers import PREFILL
from bidroute.yaml_files import read_yaml

_LOG = logging.getLogger(__name__)
_SIZES = ("batch_slots", "kv_tokens")

Entries = dict[str, dict[str, Any]]


def read_workers(path: Path) -> Entries:
    """Settings by worker name. Raises ConfigError, naming the file, for anything that is not such a list."""
    document = read_yaml(path, "the list of workers in", "`workers:` and a list under it")
    rows = document.get("workers") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: expected `workers:` and a list under it")
    prefill = document.get("prefill") or []
    if not isinstance(prefill, list):
        raise ConfigError(f"{path}: expected a list under `prefill:`")
    places: list[tuple[str, Any, dict[str, str]]] = [(f"workers[{i}]", row, {}) for i, row in enumerate(rows)]
    places += [(f"prefill[{i}]", row, {"role": PREFILL}) for i, row in enumerate(prefill)]
    return _by_name(path, places)


def _by_name(path: Path, places: list[tuple[str, Any, dict[str, str]]]) -> Entries:
    """From rows, each with where it stands in the file and what that says of it."""
    entries: Entries = {}
    for place, row, role in places:
        settings = worker_row(row)
        if not isinstance(settings, dict):
            raise ConfigError(f"{path}: {place} is {row!r}; expected a URL or settings")
        settings = settings | role
        drain = settings.get("drain", False)
        if not isinstance(drain, bool):
            raise ConfigError(f"{path}: {place}.drain is {drain!r}; expected true or false")
        try:
            name = worker_name(settings)
        except ConfigError as problem:
            raise ConfigError(f"{path}: {place}: {problem}") from None
        if name in entries:
            raise ConfigError(f"{path}: worker {name!r} is there twice; names must differ")
        entries[name] = settings
    return entries


class FleetFileWatcher:
    """Looks at the file every `poll_s` seconds and carries out its changes.

    `known` are the entries that the fleet runs already (the router read the same file at its start); `report` gets
    one line for each thing that went wrong.
    """

    def __init__(
        self,
        path: Path,
        fleet: FleetAdmin,
        known: Entries | None = None,
        *,
        poll_s: float = 1.0,
        report: Callable[[str], None] = _LOG.warning,
    ) -> None:
        self.path = path
        self.poll_s = poll_s
        self._fleet = fleet
        self._applied: Entries = dict(known or {})
        self._stamp: tuple[int, ...] | None = None
        self._report = report

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self.poll_s)

    async def look(self) -> bool:
        """Look once; returns whether the file had changed. Files are read in a thread: a disk may be slow."""
        stamp = await asyncio.to_thread(_stamp, self.path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            wanted = await asyncio.to_thread(read_workers, self.path)
        except ConfigError as problem:
            self._report(f"{problem}; the fleet stays as it is")
        else:
            await self._apply(wanted)
        return True

    async def _apply(self, wanted: Entries) -> None:
        for name in [name for name in self._applied if name not in wanted]:
            await self._try(name, self._remove(name))
        for name, settings in wanted.items():
            await self._try(name, self._change(name, settings))

    async def _try(self, name: str, change: Any) -> None:
        """One worker's trouble is reported and does not stop the others; it is tried again when the file changes."""
        try:
            await change
        except BidrouteError as problem:
            self._report(f"{self.path}: worker {name}: {problem}")

    async def _change(self, name: str, settings: dict[str, Any]) -> None:
        old = self._applied.get(name)
        if old == settings:
            return
        if old is not None and _can_stay(old, settings):
            if not _same(old, settings, only=_SIZES):
                await self._fleet.resize_worker(name, *(settings.get(size) for size in _SIZES))
            if settings.get("drain", False):
                await self._fleet.drain_worker(name)
        else:
            if old is not None:
                await self._remove(name)
            await self._fleet.add_worker(settings)
        self._applied[name] = settings

    async def _remove(self, name: str) -> None:
        # Whether or not it is still there, it is none of the file's business any more.
        del self._applied[name]
        await self._fleet.remove_worker(name)


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with every new version of a file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _can_stay(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether resizing and draining are enough: nothing else changed, it is not called back, no size is unset."""
    called_back = old.get("drain", False) and not new.get("drain", False)
    unset = any(size in old and size not in new for size in _SIZES)
    return _same(old, new, except_for=(*_SIZES, "drain")) and not called_back and not unset


def _same(
    old: dict[str, Any], new: dict[str, Any], *, only: Iterable[str] = (), except_for: Iterable[str] = ()
) -> bool:
    keys = set(only) or (old.keys() | new.keys()) - set(except_for)
    return all(old.get(key) == new.get(key) for key in keys)
