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
from typing import TypeVar

from bidroute.errors import BidrouteError

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def run_all(
    function: Callable[[Task], Answer],
    tasks: Sequence[Task],
    jobs: int,
    on_done: Callable[[Task], None],
    before: Sequence[Callable[[], None]] = (),
) -> list[Answer]:
    """`function` of every task, in order; `on_done` is called here as each one ends, in any order.

    With one job everything runs in this process. Over several processes, each of `before` is run once, in any of
    them, before the first task. The first exception stops the rest.
    """
    jobs = min(jobs, len(tasks))
    if jobs <= 1:
        answers = []
        for task in tasks:
            answers.append(function(task))
            on_done(task)
        return answers
    with process_pool(jobs) as pool:
        with interrupts_ignored():  # the children inherit this: an interrupt is for this process to handle
            preparing = [pool.submit(prepare) for prepare in before]
        for ready in preparing:
            answer_of(ready)
        with interrupts_ignored():
            futures = {pool.submit(function, task): position for position, task in enumerate(tasks)}
        done: dict[int, Answer] = {}
        for future in as_completed(futures):
            position = futures[future]
            done[position] = answer_of(future)
            on_done(tasks[position])
    return [done[position] for position in range(len(tasks))]


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
