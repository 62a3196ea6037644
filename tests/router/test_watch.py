import asyncio
import os
from itertools import count

import pytest

from bidroute.errors import ConfigError
from bidroute.router.watch import FleetFileWatcher, read_workers
from tests.router.fleet_fakes import FakeFleet


@pytest.fixture
def fleet():
    return FakeFleet()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fleet.yaml"


class Watched:
    """A watcher, its file, and what it reported."""

    def __init__(self, path, fleet, known=None):
        self.path = path
        self.reports = []
        self.watcher = FleetFileWatcher(path, fleet, known, poll_s=0.01, report=self.reports.append)
        self._time = count(1)

    async def write(self, text):
        """Write and look; every version gets a time of its own, as seconds apart would give it."""
        self.path.write_text(text)
        os.utime(self.path, (next(self._time), 1000))
        os.utime(self.path, ns=(0, next(self._time) * 10**9))
        return await self.watcher.look()


@pytest.fixture
def watched(path, fleet):
    return Watched(path, fleet)


async def test_workers_come_and_go(watched, fleet):
    await watched.write("workers:\n  - http://a:8000\n  - {url: 'http://b:8000', name: bee, batch_slots: 4}\n")
    assert fleet.calls == [
        ("add", {"url": "http://a:8000"}),
        ("add", {"url": "http://b:8000", "name": "bee", "batch_slots": 4}),
    ]
    fleet.calls.clear()
    await watched.write("workers: [{url: 'http://b:8000', name: bee, batch_slots: 4}, 'http://c:8000']")
    assert fleet.calls == [("remove", "a:8000", False), ("add", {"url": "http://c:8000"})]
    assert watched.reports == []


async def test_prefill_workers_come_and_go(watched, fleet):
    await watched.write("workers: ['http://a:8000']\nprefill: ['http://p:8000', {url: 'http://q:8000', name: q}]")
    assert fleet.calls[1:] == [
        ("add", {"url": "http://p:8000", "role": "prefill"}),
        ("add", {"url": "http://q:8000", "name": "q", "role": "prefill"}),
    ]
    fleet.calls.clear()
    await watched.write("workers: ['http://a:8000', 'http://p:8000']")
    assert fleet.calls == [("remove", "q", False), ("remove", "p:8000", False), ("add", {"url": "http://p:8000"})]
    await watched.write("workers: ['http://a:8000']\nprefill: {url: 'http://p:8000'}")
    assert "expected a list under `prefill:`" in watched.reports[-1]


async def test_an_unchanged_file_is_not_read_again(watched, fleet):
    await watched.write("workers: ['http://a:8000']")
    assert not await watched.watcher.look()
    assert len(fleet.calls) == 1


@pytest.mark.parametrize(
    ("old", "new", "calls"),
    [
        ("batch_slots: 4", "batch_slots: 8", [("resize", "w", 8, None)]),
        ("", "kv_tokens: 99", [("resize", "w", None, 99)]),
        ("", "drain: true", [("drain", "w")]),
        ("drain: true", "drain: true", []),
        ("", "batch_slots: 2, drain: true", [("resize", "w", 2, None), ("drain", "w")]),
        ("drain: true", "", [("remove", "w", False), ("add", {"url": "http://w:1", "name": "w"})]),
        ("batch_slots: 4", "", [("remove", "w", False), ("add", {"url": "http://w:1", "name": "w"})]),
        (
            "",
            "block_size: 16",
            [("remove", "w", False), ("add", {"url": "http://w:1", "name": "w", "block_size": 16})],
        ),
    ],
)
async def test_changes_become_calls(watched, fleet, old, new, calls):
    await watched.write(f"workers: [{{url: 'http://w:1', name: w, {old}}}]")
    fleet.calls.clear()
    await watched.write(f"# again\nworkers: [{{url: 'http://w:1', name: w, {new}}}]")
    assert fleet.calls == calls


async def test_a_new_worker_may_come_draining(watched, fleet):
    """It cannot be drained after it was added: it joins only when it answers."""
    await watched.write("workers: [{url: 'http://w:1', drain: true}]")
    assert fleet.calls == [("add", {"url": "http://w:1", "drain": True})]
    assert watched.reports == []


async def test_what_the_router_started_with_is_known(path, fleet):
    fleet.names = {"a:1", "mine"}
    watched = Watched(path, fleet, known={"a:1": {"url": "http://a:1"}})
    await watched.write("workers: ['http://a:1']")
    assert fleet.calls == []
    await watched.write("workers: []")
    assert fleet.calls == [("remove", "a:1", False)]
    assert fleet.names == {"mine"}


@pytest.mark.parametrize(
    ("text", "report"),
    [
        ("workers: [", "line 1: not valid YAML"),
        ("worker: []", "expected `workers:`"),
        ("just text", "expected `workers:`"),
        ("", "expected `workers:`"),
        ("workers: 3", "expected `workers:`"),
        ("workers: [3]", "workers[0] is 3; expected a URL or settings"),
        ("workers: [{name: x}]", "workers[0]: worker url None"),
        ("workers: [nonsense]", "workers[0]: worker url 'nonsense'"),
        ("workers: [{url: 'http://a:1', name: 7}]", "worker name 7; expected a text"),
        ("workers: [{url: 'http://a:1', drain: 2}]", "workers[0].drain is 2"),
        ("workers: ['http://a:1', 'http://a:1']", "'a:1' is there twice"),
    ],
)
async def test_a_broken_file_is_reported_once_and_the_fleet_stays(watched, fleet, text, report):
    await watched.write("workers: ['http://a:1']")
    fleet.calls.clear()
    await watched.write(text)
    await watched.watcher.look()
    assert [report in line and "\n" not in line for line in watched.reports] == [True]
    assert fleet.calls == []
    await watched.write("workers: ['http://a:1', 'http://b:1']")
    assert fleet.calls == [("add", {"url": "http://b:1"})]


async def test_a_file_that_vanishes_is_reported_and_the_fleet_stays(watched, fleet):
    await watched.write("workers: ['http://a:1']")
    watched.path.unlink()
    await watched.watcher.look()
    assert "No such file" in watched.reports[0]
    assert len(fleet.calls) == 1


async def test_one_workers_trouble_does_not_stop_the_others(watched, fleet):
    fleet.fail_with = ConfigError("batch_slots=-1; expected 1 or more")
    await watched.write("workers: ['http://a:1', 'http://b:1']")
    assert fleet.names == {"b:1"}
    assert watched.reports == [f"{watched.path}: worker a:1: batch_slots=-1; expected 1 or more"]
    await watched.write("# mended\nworkers: ['http://a:1', 'http://b:1']")
    assert fleet.names == {"a:1", "b:1"}


async def test_a_worker_removed_by_hand_before_is_reported_and_forgotten(watched, fleet):
    await watched.write("workers: ['http://a:1']")
    fleet.names.clear()
    await watched.write("workers: []")
    assert "'a:1' is unknown" in watched.reports[0]
    await watched.write("workers: ['http://a:1']")
    assert fleet.names == {"a:1"}


async def test_runs_until_cancelled(watched, fleet):
    task = asyncio.get_running_loop().create_task(watched.watcher.run())
    watched.path.write_text("workers: ['http://a:1']")
    async with asyncio.timeout(5):
        while not fleet.calls:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_credentials_in_a_url_are_no_part_of_a_name(path):
    path.write_text("workers: ['http://user:secret@host:8000/base']")
    assert list(read_workers(path)) == ["host:8000"]
