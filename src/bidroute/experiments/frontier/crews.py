"""Who does the runs of a search: processes on this machine, kept from batch to batch, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from bidroute.experiments import warm_up
from bidroute.experiments.workers import answer_of, interrupts_ignored, process_pool

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class Crew(Protocol):
    """Runs tasks, `size` of them at once."""

    @property
    def size(self) -> int:
        """How many tasks run at once."""
        ...

    def each(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        """The place and the answer of each task, as they end. The first exception ends the rest."""
        ...


def gathered(jobs: int, ray: str | None = None) -> AbstractContextManager[Crew]:
    """A crew of `jobs` processes here, or on the Ray cluster at that address."""
    if ray is not None:
        from bidroute.experiments.frontier.ray_crew import ray_crew  # ray is heavy, and an extra

        return ray_crew(ray)
    return local_crew(jobs)


@contextmanager
def local_crew(jobs: int) -> Iterator[Crew]:
    """This process alone for one job, else that many others; none is left when the block ends or is interrupted."""
    if jobs == 1:
        yield _Alone()
        return
    with process_pool(jobs) as pool:
        with interrupts_ignored():  # the children inherit this: an interrupt is for this process to handle
            preparing = [pool.submit(prepare) for prepare in warm_up.PARTS]
        for ready in preparing:
            answer_of(ready)
        yield _Processes(pool, jobs)


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
