"""Who does the runs of a search: processes on this machine, kept from batch to batch, or a Ray cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bidroute.experiments import warm_up
from bidroute.experiments.workers import Crew, local_crew


def gathered(jobs: int, ray: str | None = None) -> AbstractContextManager[Crew]:
    """A crew of `jobs` processes here, or on the Ray cluster at that address."""
    if ray is not None:
        from bidroute.experiments.frontier.ray_crew import ray_crew  # ray is heavy, and an extra

        return ray_crew(ray)
    return local_crew(jobs, warm_up.PARTS)
