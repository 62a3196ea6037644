"""Running tasks over several processes, with progress, and with nothing left running when interrupted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Protocol, TypeVar

from bidroute.errors import BidrouteError

Progress = Callable[[int, int, str], None]  # done, total, and what has just ended
Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class Crew(Protocol):
    """Runs tasks, `size` of them at once."""

    @property
    def size(self) -> int:
        """How many tasks run at once."""
        ...

    def each(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        """The place and the answer of each task, as they end. The first exception ends the rest."""
        ...


@contextmanager
def local_crew(jobs: int, before: Sequence[Callable[[], None]] = ()) -> Iterator[Crew]:
    """This process alone for one job, else that many others; none is left when the block ends or is interrupted.

    Over several processes, each of `before` is run once, in any of them, before the first task.
    """
    if jobs <= 1:
        yield _Alone()
        return
    with process_pool(jobs) as pool:
        with interrupts_ignored():  # the children inherit this: an interrupt is for this process to handle
            preparing = [pool.submit(prepare) for prepare in before]
        for ready in preparing:
            answer_of(ready)
        yield _Processes(pool, jobs)


def run_all(
    function: Callable[[Task], Answer],
    tasks: Sequence[Task],
    jobs: int,
    on_done: Callable[[Task], None],
    before: Sequence[Callable[[], None]] = (),
) -> list[Answer]:
    """`function` of every task, in order, by a `local_crew`; `on_done` is called as each one ends, in any order."""
    done: dict[int, Answer] = {}
    with local_crew(min(jobs, len(tasks)), before) as crew:
        for place, answer in crew.each(function, tasks):
            done[place] = answer
            on_done(tasks[place])
    return [done[place] for place in range(len(tasks))]


class _Alone:
    size = 1

    def each(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        for place, task in enumerate(tasks):
            yield place, function(task)


class _Processes:
    def __init__(self, pool: ProcessPoolExecutor, size: int) -> None:
        self._pool = pool
        self.size = size

    def each(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        with interrupts_ignored():
            futures = {self._pool.submit(function, task): place for place, task in enumerate(tasks)}
        for future in as_completed(futures):
            yield futures[future], answer_of(future)


def answer_of(future: Future[Answer]) -> Answer:
    """The answer of a future of a process pool. Raises BidrouteError where its process was killed."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise BidrouteError(
            "a worker process was killed (out of memory?); use fewer with --jobs, or fewer requests"
        ) from None


@contextmanager
def process_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes; when the block fails or is interrupted they are ended at once."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Processes that are started inside the block ignore interrupts; outside the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
