"""A crew on a Ray cluster that is there already (or, at the address `local`, one for this command alone)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from bidroute.errors import BidrouteError, ConfigError
from bidroute.experiments.workers import Crew

Task = TypeVar("Task")
Answer = TypeVar("Answer")
CONNECT_S = 10.0


@contextmanager
def ray_crew(address: str) -> Iterator[Crew]:
    """Connect to the cluster at `address` (`auto`, HOST:PORT, ray://HOST:PORT or `local`) until the block ends.

    Its machines need bidroute installed, of the same version. Raises ConfigError where ray is not installed or nothing
    answers at the address.
    """
    if find_spec("ray") is None:
        raise ConfigError("--ray needs ray; run: pip install 'bidroute[ray]'")
    ray: Any = import_module("ray")  # heavy, and an extra
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as problem:
        reason = " ".join(str(problem).split()).split(". ")[0]
        raise ConfigError(f"--ray {address}: cannot connect ({reason}); expected auto, HOST:PORT or local") from None
    try:
        yield _RayCrew(ray, max(int(ray.cluster_resources().get("CPU", 1)), 1))
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError where HOST:PORT does not answer; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


class _RayCrew:
    """One CPU of the cluster per task. Ray starts a task again where its machine is lost."""

    def __init__(self, ray: Any, size: int) -> None:
        self._ray = ray
        self.size = size

    def each(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        remote = self._ray.remote(num_cpus=1)(function)
        places = {remote.remote(task): place for place, task in enumerate(tasks)}
        waiting = list(places)
        try:
            while waiting:
                (ended, *_), waiting = self._ray.wait(waiting, num_returns=1)
                yield places[ended], self._answer(ended)
        finally:
            for reference in waiting:  # after an error or an interrupt nobody waits for these
                self._ray.cancel(reference, force=True)

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as problem:
            cause = problem.cause
            if isinstance(cause, BidrouteError):
                raise cause from None
            if isinstance(cause, ImportError):
                raise BidrouteError(f"a machine of the cluster lacks {cause.name}; install bidroute there") from None
            raise
        except self._ray.exceptions.RayError as problem:
            reason = " ".join(str(problem).split())
            raise BidrouteError(f"a task on the Ray cluster was lost: {reason[:200]}") from None
