"""Comparing policies: every one of them on the same arrivals, for several seeds, over several processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bidroute.errors import ConfigError
from bidroute.experiments import warm_up
from bidroute.experiments.describe import describe
from bidroute.experiments.load import TARGET_LOAD
from bidroute.experiments.results import Comparison, Result
from bidroute.experiments.run import RunTask, run
from bidroute.experiments.scenario import Experiment, prepare
from bidroute.experiments.settings import ScenarioSettings, require_counts
from bidroute.experiments.verdict import SUBJECT
from bidroute.experiments.workers import Progress, run_all
from bidroute.policies import PolicySettings, Timing, build_policy, compared_names, policy_names

DEFAULT_SEEDS = 3
DEFAULT_POLICIES = (
    "round_robin",
    "random",
    "join_shortest_queue",
    "weighted_least_connections",
    "power_of_d",
    "least_kv",
    "fifo+safety",
    "least_footprint+safety",
    "least_footprint+safety+ageing",
    SUBJECT,
)
TIMELINE_POINTS = 300


def compare(
    settings: ScenarioSettings,
    policies: Sequence[str] | None = None,
    seeds: int = DEFAULT_SEEDS,
    jobs: int = 1,
    *,
    keep_timelines: bool = False,
    keep_requests: bool = False,
    on_progress: Progress | None = None,
) -> Comparison:
    """Run every policy on the scenario of every seed 0 … seeds − 1.

    A seed changes the draw of a built-in workload, the noise of predicted lengths and the policies' own
    randomness; a recorded trace stays as it is. `keep_timelines` records the first seed over time,
    `keep_requests` keeps one row per request. `on_progress(done, total, label)` is called as runs end.
    More than one job starts processes, so a script must guard its entry point with `if __name__ == "__main__"`.
    Raises ConfigError or TraceError for anything that cannot be run.
    """
    names = chosen_policies(policies)
    require_counts(seeds=seeds, jobs=jobs)
    for name in names:
        build_policy(name, PolicySettings(objective=settings.objective))  # refuses wrong settings at once
    experiment = prepare(settings, list(range(seeds)))
    tasks = _tasks(experiment, names, keep_timelines, keep_requests)
    done = 0

    def ended(task: RunTask) -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, len(tasks), f"{task.policy}, seed {task.seed}")

    results = run_all(run, tasks, jobs, ended, before=warm_up.PARTS)
    results.sort(key=lambda result: (names.index(result.policy), result.seed))
    scenario = {**describe(experiment), "policies": names}
    return Comparison(scenario, results, _notes(experiment, results))


def chosen_policies(policies: Sequence[str] | None) -> list[str]:
    """The policies to compare: the usual ones for None, else those named, where `all` stands for every main one."""
    if policies is None:
        return [name for name in DEFAULT_POLICIES if name in policy_names()]
    given = [name.strip() for name in policies if name.strip()]
    names = [name for text in given for name in (compared_names() if text == "all" else [text])]
    if not names:
        raise ConfigError("policies: none given; name some, or say all")
    return list(dict.fromkeys(names))


def _tasks(experiment: Experiment, names: list[str], timelines: bool, requests: bool) -> list[RunTask]:
    """One task per policy and seed: the slow ones first so that the last processes end together, and among them
    one of every policy first so that on a new machine no two processes compile the same policy."""
    first = next(iter(experiment.scenarios))
    quick = {name: build_policy(name).timing is Timing.ON_ARRIVAL for name in names}
    runs = [(name, seed) for seed in experiment.scenarios for name in sorted(names, key=lambda name: name != SUBJECT)]
    runs.sort(key=lambda one: quick[one[0]])
    return [
        run_task(
            experiment,
            name,
            seed,
            timeline_interval_s=_interval_s(experiment) if timelines and seed == first else None,
            keep_requests=requests,
        )
        for name, seed in runs
    ]


def run_task(
    experiment: Experiment,
    policy: str,
    seed: int,
    *,
    timeline_interval_s: float | None = None,
    keep_requests: bool = False,
) -> RunTask:
    """The task of running one policy on one seed of an experiment."""
    return RunTask(
        policy,
        seed,
        experiment.scenarios[seed],
        experiment.predictions[seed],
        experiment.settings.lengths,
        experiment.settings.objective,
        experiment.slo,
        timeline_interval_s,
        keep_requests,
    )


def _interval_s(experiment: Experiment) -> float:
    """Simulated time between samples: about TIMELINE_POINTS of them until all is served."""
    workload = experiment.first.workload
    arriving_s = float(workload.arrival_s[-1])
    serving_s = len(workload) / experiment.load.capacity_per_s
    return max(arriving_s, serving_s, 1e-3) / TIMELINE_POINTS


def _notes(experiment: Experiment, results: list[Result]) -> list[str]:
    """What a reader must know beside the figures: rows skipped, requests refused or never finished, odd loads."""
    workload = experiment.first.workload
    notes = []
    if workload.skipped_rows:
        notes.append(f"{workload.skipped_rows} bad rows of the trace were skipped")
    notes += _count_notes(results, "refused", "fit no device (or not the one they were sent to) and were refused")
    notes += _count_notes(results, "unfinished", "were never finished")
    if all(result.row["refused"] == len(workload) for result in results):
        raise ConfigError("every request was refused: none fits a device; give more KV tokens or smaller blocks")
    load = experiment.load.load
    asked = experiment.settings.speedup is not None or experiment.settings.load is not None
    if math.isfinite(load) and not 0.5 <= load <= 1.5 and not asked:
        notes.append(f"the load is {load:.2f}; --load {TARGET_LOAD:g} would bring it to {TARGET_LOAD:g}")
    return notes


def _count_notes(results: list[Result], key: str, what: str) -> list[str]:
    counts = {result.policy: result.row[key] for result in reversed(results)}  # of the first seed
    if not any(counts.values()):
        return []
    if len(set(counts.values())) == 1:
        return [f"{next(iter(counts.values()))} requests {what}, under every policy"]
    return [f"requests that {what}: " + ", ".join(f"{count} under {name}" for name, count in counts.items() if count)]
