"""Running candidates on the scenarios of an experiment, with a journal of what is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

from bidroute.errors import BidrouteError
from bidroute.experiments.comparison import run_task
from bidroute.experiments.frontier.candidates import Candidate
from bidroute.experiments.frontier.crews import Crew
from bidroute.experiments.frontier.journal import Journal, code_fingerprint
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.results import Row
from bidroute.experiments.run import RunTask, run
from bidroute.experiments.scenario import Experiment
from bidroute.policies import PolicySettings, build_policy

LABEL_WIDTH = 36  # of what is told as progress
_OF_THE_MACHINE = ("decision_us", "wall_s", "cpu_s")  # figures that differ from run to run


@dataclass(frozen=True, slots=True)
class CandidateTask:
    """A candidate on every seed, as it goes to another process or machine; `code` is that of who sends it."""

    runs: tuple[RunTask, ...]
    code: str


def run_candidate(task: CandidateTask) -> list[Row]:
    """The rows of a candidate, one per seed. Raises BidrouteError on a machine that has other code."""
    if task.code != code_fingerprint():
        raise BidrouteError("a machine of the cluster has another version of bidroute; install the same everywhere")
    rows = [run(one).row for one in task.runs]
    return [{name: value for name, value in row.items() if name not in _OF_THE_MACHINE} for row in rows]


class Evaluation:
    """Runs candidates with a crew; what the journal has already is not run again.

    `on_progress(done, total, label)` is called as candidates end, where `total` is `expected`.
    """

    def __init__(
        self,
        experiment: Experiment,
        crew: Crew,
        journal: Journal,
        expected: int,
        on_progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self.experiment = experiment
        self._crew = crew
        self._journal = journal
        self._expected = expected
        self._done = 0
        self._on_progress = on_progress

    def outcomes(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """Run them; the outcomes in the same order. Raises ConfigError for a candidate that cannot be built."""
        for candidate in candidates:
            build_policy(candidate.policy, PolicySettings(objective=candidate.objective))  # refuses wrong ones at once
        missing = list({one.key: one for one in candidates if self._journal.get(one.key) is None}.values())
        self._tell(len(candidates) - len(missing), "from the journal")
        for place, rows in self._crew.each(run_candidate, [self._task(one) for one in missing]):
            self._journal.add(missing[place].key, rows)
            self._tell(1, shorten(missing[place].label, LABEL_WIDTH, placeholder=" …"))
        return [Outcome(one, tuple(self._journal.get(one.key) or ())) for one in candidates]

    def _task(self, candidate: Candidate) -> CandidateTask:
        runs = [
            replace(run_task(self.experiment, candidate.policy, seed), objective=candidate.objective)
            for seed in self.experiment.scenarios
        ]
        return CandidateTask(tuple(runs), code_fingerprint())

    def _tell(self, count: int, label: str) -> None:
        self._done += count
        if count and self._on_progress is not None:
            self._on_progress(min(self._done, self._expected), self._expected, label)
