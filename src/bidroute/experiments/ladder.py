"""The ladder: from dispatch on arrival to the whole of bid_price, one idea at a time, on the same arrivals.

It is climbed where KV binds and where batch slots bind, on several workloads, and with lengths known, predicted
with noise, and unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.experiments import warm_up
from bidroute.experiments.comparison import DEFAULT_SEEDS
from bidroute.experiments.finished_runs import run_noted
from bidroute.experiments.load import held_tokens
from bidroute.experiments.measures import Measure
from bidroute.experiments.results import Comparison, Result, quantiles
from bidroute.experiments.run import RunTask
from bidroute.experiments.scenario import Experiment, prepare
from bidroute.experiments.settings import DEFAULT_BATCH_SLOTS, ScenarioSettings, require_counts
from bidroute.experiments.variations import at_load
from bidroute.experiments.verdict import TIE
from bidroute.experiments.workers import Progress, local_crew
from bidroute.traces import SYNTHETIC

DEFAULT_TRACES = tuple(f"builtin:{name}" for name in SYNTHETIC)
DEFAULT_REQUESTS = 600
DEFAULT_LOAD = 1.5  # more than can be served for as long as they arrive: where nobody waits no order is worth anything
NO_TAIL = "balanced,tail=0"


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: a policy under an objective, what is new in it, and whether it looks at lengths."""

    name: str
    policy: str
    what: str
    objective: str = "balanced"
    sees_lengths: bool = True


RUNGS = (
    Rung(
        "dispatch on arrival",
        "join_shortest_queue",
        "to the worker with the fewest requests, where it queues",
        sees_lengths=False,
    ),
    Rung("central FIFO", "fifo", "one queue, first come first served, released when startable", sees_lengths=False),
    Rung("least footprint", "least_footprint", "the smallest footprint of slots and KV goes first"),
    Rung("+ safety", "least_footprint+safety", "a look ahead keeps the batch within the KV for as long as it runs"),
    Rung("+ prices, queue only", "bid_price:forecast=0", "shadow prices, of those who wait", NO_TAIL),
    Rung("+ forecast arrivals", "bid_price", "prices count the arrivals to come", NO_TAIL),
    Rung("+ growing tail", "bid_price", "a reward that grows with the time overdue: all of bid_price"),
)
LENGTHS = {"known": "oracle", "noisy": "noisy:0.6", "none": "none"}
BINDS = ("kv", "slots")


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """What to climb. `kv_tokens` is the KV of a worker where KV binds (None: as `compare` would choose).

    Where KV binds, a worker has four times the slots that its KV fills; where slots bind, as many as its KV would have
    filled, and twice that KV: so both run batches of the same size. `load` is arrivals over estimated capacity.
    """

    traces: tuple[str, ...] = DEFAULT_TRACES
    requests: int | None = None
    binds: tuple[str, ...] = BINDS
    lengths: tuple[str, ...] = tuple(LENGTHS)
    load: float = DEFAULT_LOAD
    base: ScenarioSettings = field(default_factory=ScenarioSettings)
    seeds: int = DEFAULT_SEEDS

    def __post_init__(self) -> None:
        for what, given, known in (("binds", self.binds, BINDS), ("lengths", self.lengths, tuple(LENGTHS))):
            wrong = [name for name in given if name not in known]
            if wrong or not given:
                raise ConfigError(f"{what} {wrong[0] if wrong else ''!r}; expected some of: {', '.join(known)}")
        if not self.traces:
            raise ConfigError("trace: none given; expected one or more")
        if not (math.isfinite(self.load) and self.load > 0):
            raise ConfigError(f"load: {self.load}; expected a positive number, such as 1.0")
        require_counts(seeds=self.seeds)


@dataclass(frozen=True, slots=True)
class Cell:
    """One climb: a workload on a fleet where `binds` binds, with this knowledge of lengths.

    `runs` compares the rungs by their names; `fleet` is plain data.
    """

    trace: str
    binds: str
    lengths: str
    fleet: dict[str, Any]
    runs: Comparison

    def changes(self, step: int, path: str) -> FloatArray:
        """What rung `step` changed against the one below, relative, by seed: float64[seeds]."""
        above, below = (self.runs.values(RUNGS[rung].name, path) for rung in (step, step - 1))
        changes: FloatArray = np.divide(above - below, below, out=np.full(len(below), np.nan), where=below > 0)
        return changes


@dataclass(frozen=True, slots=True)
class Worth:
    """What one step changed, relative: median, least and most over workloads and seeds.

    `verdict` is +1 or −1 where the median is a gain or a loss beyond TIE and three quarters agree on it, else 0.
    """

    middle: float
    low: float
    high: float
    verdict: int


@dataclass(frozen=True, slots=True)
class Ladder:
    """All climbs, in order of workload, what binds, and lengths."""

    settings: LadderSettings
    cells: list[Cell]

    def cells_of(self, binds: str | None = None, lengths: str | None = None) -> list[Cell]:
        """The cells of some kind; None stands for all."""
        return [one for one in self.cells if binds in (None, one.binds) and lengths in (None, one.lengths)]

    def worth(self, step: int, measure: Measure, binds: str | None = None, lengths: str | None = None) -> Worth:
        """What rung `step` (1 is the second) is worth over all cells of some kind."""
        parts = [cell.changes(step, measure.path) for cell in self.cells_of(binds, lengths)]
        changes = np.concatenate(parts) if parts else np.zeros(0)
        changes = changes[np.isfinite(changes)]
        if not len(changes):
            return Worth(math.nan, math.nan, math.nan, 0)
        gains = changes if measure.higher_is_better else -changes
        middle = float(median(gains))
        agree = float(np.mean(np.sign(gains) == np.sign(middle)))
        verdict = int(np.sign(middle)) if abs(middle) >= TIE and agree >= 0.75 else 0
        return Worth(float(median(changes)), float(changes.min()), float(changes.max()), verdict)


def climb(
    settings: LadderSettings, jobs: int = 1, journal: Path | None = None, on_progress: Progress | None = None
) -> Ladder:
    """Run every rung of every cell on every seed.

    Finished runs are noted in `journal`, and those found there are not run again. Raises ConfigError or TraceError
    for what cannot be run.
    """
    require_counts(jobs=jobs)
    places = [
        (trace, binds, kind) for trace in settings.traces for binds in settings.binds for kind in settings.lengths
    ]
    experiments = [_experiment(settings, *place) for place in places]
    tasks = [_tasks(settings, experiment) for experiment in experiments]
    with local_crew(jobs, warm_up.PARTS) as crew:
        rows = iter(run_noted([task for some in tasks for task in some], crew, journal, on_progress))
    cells = []
    for (trace, binds, kind), experiment, some in zip(places, experiments, tasks, strict=True):
        names = [rung.name for rung in RUNGS for _ in range(settings.seeds)]
        none = quantiles(np.zeros(0))
        results = [Result(name, task.seed, next(rows), none, none) for name, task in zip(names, some, strict=True)]
        cells.append(Cell(trace, binds, kind, _fleet_data(experiment), Comparison({}, results)))
    return Ladder(settings, cells)


def _experiment(settings: LadderSettings, trace: str, binds: str, kind: str) -> Experiment:
    """The scenarios of one cell, by seed, at the load asked for."""
    seeds = list(range(settings.seeds))
    requests = settings.requests
    if requests is None and trace.startswith("builtin:"):
        requests = DEFAULT_REQUESTS
    base = replace(settings.base, trace=trace, requests=requests, lengths=LENGTHS[kind], batch_slots=None)
    rough = prepare(base, seeds[:1])
    kv_tokens = rough.first.devices[0].kv_tokens
    filled = max(1, int(kv_tokens / held_tokens(rough.first.workload)))
    if binds == "kv":
        slots = max(DEFAULT_BATCH_SLOTS, 4 * filled)
    else:
        slots, kv_tokens = filled, 2 * kv_tokens
    experiment = prepare(replace(base, batch_slots=slots, kv_tokens=kv_tokens), seeds)
    scenarios = {seed: at_load(scenario, settings.load) for seed, scenario in experiment.scenarios.items()}
    return replace(experiment, scenarios=scenarios)


def _tasks(settings: LadderSettings, experiment: Experiment) -> list[RunTask]:
    """One per rung and seed. What no rung can see is left out, so that the runs of one that sees no lengths are one."""
    return [
        RunTask(
            rung.policy,
            seed,
            experiment.scenarios[seed],
            experiment.predictions[seed] if rung.sees_lengths else None,
            experiment.settings.lengths if rung.sees_lengths else "none",
            rung.objective,
            experiment.slo,
        )
        for rung in RUNGS
        for seed in range(settings.seeds)
    ]


def _fleet_data(experiment: Experiment) -> dict[str, Any]:
    scenario = experiment.first
    device = scenario.devices[0]
    span_s = float(scenario.workload.arrival_s[-1])
    return {
        "devices": len(scenario.devices),
        "batch_slots": device.batch_slots,
        "kv_tokens": device.kv_tokens,
        "requests": len(scenario.workload),
        "requests_per_s": len(scenario.workload) / span_s if span_s > 0 else None,
    }


def worth_nothing(ladder: Ladder, measures: Sequence[Measure]) -> list[int]:
    """The steps that no measure is clearly better or worse for, neither where KV binds nor where slots bind."""

    def idle(step: int) -> bool:
        kinds = [(measure, binds) for measure in measures for binds in ladder.settings.binds]
        return all(ladder.worth(step, measure, binds).verdict == 0 for measure, binds in kinds)

    return [step for step in range(1, len(RUNGS)) if idle(step)]
