"""Running candidates on the scenarios of an experiment, with a journal of what is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bidroute.experiments.comparison import run_task
from bidroute.experiments.finished_runs import run_noted
from bidroute.experiments.frontier.candidates import Candidate
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.run import RunTask
from bidroute.experiments.scenario import Experiment
from bidroute.experiments.workers import Crew, Progress
from bidroute.policies import PolicySettings, build_policy


class Evaluation:
    """Runs candidates with a crew; what the journal has already is not run again.

    `on_progress(done, total, label)` is called as runs end, where `total` is that of `expected` candidates.
    """

    def __init__(
        self,
        experiment: Experiment,
        crew: Crew,
        journal: Path | None,
        expected: int,
        on_progress: Progress | None = None,
    ) -> None:
        self.experiment = experiment
        self._crew = crew
        self._journal = journal
        self._total = expected * len(experiment.scenarios)
        self._done = 0
        self._on_progress = on_progress

    def outcomes(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Run them; the outcomes in the same order. Raises ConfigError for a candidate that cannot be built."""
        for candidate in candidates:
            build_policy(candidate.policy, PolicySettings(objective=candidate.objective))  # refuses wrong ones at once
        tasks = [task for candidate in candidates for task in self._tasks(candidate)]
        rows = iter(run_noted(tasks, self._crew, self._journal, self._told))
        self._done += len(tasks)
        return [Outcome(one, tuple(next(rows) for _ in self.experiment.scenarios)) for one in candidates]

    def _tasks(self, candidate: Candidate) -> list[RunTask]:
        """One per seed."""
        return [
            replace(run_task(self.experiment, candidate.policy, seed), objective=candidate.objective)
            for seed in self.experiment.scenarios
        ]

    def _told(self, done: int, total: int, label: str) -> None:
        if self._on_progress is not None:
            self._on_progress(min(self._done + done, self._total), self._total, label)
