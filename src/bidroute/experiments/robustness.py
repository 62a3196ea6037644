"""Robustness: the default policy against join-shortest-queue and the best of the others, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bidroute.errors import ConfigError
from bidroute.experiments import warm_up
from bidroute.experiments.comparison import DEFAULT_SEEDS, chosen_policies
from bidroute.experiments.finished_runs import run_noted
from bidroute.experiments.measures import MEASURES, Measure
from bidroute.experiments.results import Comparison, Result, quantiles
from bidroute.experiments.robustness_cases import Case
from bidroute.experiments.run import RunTask
from bidroute.experiments.scenario import Experiment, prepare
from bidroute.experiments.settings import ScenarioSettings, require_counts
from bidroute.experiments.verdict import SUBJECT, TIE, Change, change, score
from bidroute.experiments.workers import Progress, local_crew
from bidroute.policies import PolicySettings, build_policy

REFERENCE = "join_shortest_queue"
BY_SPEED = "weighted_least_connections"  # the same as REFERENCE on devices that are alike, so not run there
BASELINES = (
    REFERENCE,
    BY_SPEED,
    "fifo+safety",
    "least_footprint+safety+ageing",
)
# These never look at lengths, so that their runs are the same whatever is known of them.
_BLIND = (REFERENCE, BY_SPEED, "round_robin", "random", "power_of_d", "least_kv", "fifo")
DEFAULT_TRACES = ("builtin:azure-conv-like",)
DEFAULT_REQUESTS = 1000
GUARDED: tuple[Measure, ...] = tuple(measure for measure in MEASURES if measure.path in ("e2e_s.mean", "e2e_s.p99"))


@dataclass(frozen=True, slots=True)
class RobustnessSettings:
    """What to run: every case on every trace, on a fleet as `base` describes it."""

    cases: tuple[Case, ...]
    traces: tuple[str, ...] = DEFAULT_TRACES
    baselines: tuple[str, ...] = BASELINES
    base: ScenarioSettings = field(default_factory=ScenarioSettings)
    seeds: int = DEFAULT_SEEDS

    def __post_init__(self) -> None:
        require_counts(seeds=self.seeds)
        if not self.traces or not self.cases:
            raise ConfigError("no trace or no case given; expected one or more of each")

    def policies(self, case: Case) -> list[str]:
        """All that run: the subject, the reference, the other baselines."""
        names = dict.fromkeys((SUBJECT, REFERENCE, *chosen_policies(self.baselines)))
        return [name for name in names if name != BY_SPEED or case.fleet]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case on one trace: its runs, and what the subject is against the reference and the strongest of the rest."""

    case: Case
    trace: str
    runs: Comparison
    requests: int

    @property
    def strongest(self) -> str:
        """The best other policy by latency, the reference included."""
        others = [policy for policy in self.runs.policies if policy != SUBJECT]
        return min(others, key=lambda policy: score(self.runs, policy))

    def against(self, other: str, measure: Measure) -> Change:
        """The subject's figure against another policy's."""
        return change(self.runs, measure, SUBJECT, other)

    @property
    def below(self) -> list[Change]:
        """Where the subject falls below the reference: the guarded figures that are worse by more than a tie."""
        changes = [self.against(REFERENCE, measure) for measure in GUARDED]
        return [one for one in changes if not one.relative < TIE]


def run_cases(
    settings: RobustnessSettings, jobs: int = 1, journal: Path | None = None, on_progress: Progress | None = None
) -> list[CaseResult]:
    """Run every policy on every case, trace and seed, in this order.

    Finished runs are noted in `journal`, and those found there are not run again. Raises ConfigError or TraceError
    for what cannot be run.
    """
    require_counts(jobs=jobs)
    for name in {name for case in settings.cases for name in settings.policies(case)}:
        build_policy(name, PolicySettings(objective=settings.base.objective))  # refuses wrong ones at once
    places = [(trace, case) for trace in settings.traces for case in settings.cases]
    tasks = [_tasks(settings, trace, case) for trace, case in places]
    with local_crew(jobs, warm_up.PARTS) as crew:
        rows = iter(run_noted([task for some in tasks for task in some], crew, journal, on_progress))
    none, results = quantiles(np.zeros(0)), []
    for (trace, case), some in zip(places, tasks, strict=True):
        runs = [Result(task.policy, task.seed, next(rows), none, none) for task in some]
        results.append(CaseResult(case, trace, Comparison({}, runs), len(some[0].scenario.workload)))
    return results


def _tasks(settings: RobustnessSettings, trace: str, case: Case) -> list[RunTask]:
    experiment = _experiment(settings, trace, case)
    tasks = []
    for policy in settings.policies(case):
        for seed, ordinary in experiment.scenarios.items():
            predictions = None if policy in _BLIND else experiment.predictions[seed]
            tasks.append(
                RunTask(
                    policy,
                    seed,
                    case.scenario(ordinary),
                    None if predictions is None else predictions * case.bias,
                    "none" if policy in _BLIND else experiment.settings.lengths,
                    experiment.settings.objective,
                    experiment.slo,
                )
            )
    return tasks


def _experiment(settings: RobustnessSettings, trace: str, case: Case) -> Experiment:
    requests = settings.base.requests
    if requests is None and trace.startswith("builtin:"):
        requests = DEFAULT_REQUESTS
    base, seeds = replace(settings.base, trace=trace, requests=requests, lengths=case.lengths), range(settings.seeds)
    groups = case.groups(prepare(base, [0]).first.devices[0].kv_tokens)
    return prepare(base, list(seeds), groups)


def failures(results: Sequence[CaseResult]) -> list[tuple[CaseResult, Change]]:
    """All that falls below the reference."""
    return [(result, one) for result in results for one in result.below]
