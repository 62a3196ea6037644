"""Goals as a user states them: limits that must hold, and the one figure to improve within them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bidroute.errors import ConfigError
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.measures import Measure

_LATENCIES = {"e2e": "E2E", "ttft": "TTFT", "tpot": "TPOT"}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
GOAL_MEASURES: dict[str, Measure] = {
    f"{key}_{statistic}": Measure(f"{name} {statistic}", f"{name}\n{statistic}, s", f"{key}_s.{statistic}")
    for key, name in _LATENCIES.items()
    for statistic in _STATISTICS
} | {
    "tokens_per_s": Measure("tokens/s", "tokens\nper s", "output_tokens_per_s", higher_is_better=True),
    "goodput": Measure("goodput", "goodput\nper s", "goodput", higher_is_better=True),
    "preemptions": Measure("preemptions", "pre-\nempted", "preemptions"),
}
GOAL_FORM = "ttft_p99<2, min e2e_mean"
DEFAULT_AIM = "e2e_mean"
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3}
_LIMIT = re.compile(r"(\w+)\s*(<=?|>=?)\s*(\S+)")
_NUMBER = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(s|ms|)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure must stay below `bound` (above it, for those that are better the higher)."""

    name: str
    measure: Measure
    bound: float

    def excess(self, value: float) -> float:
        """How far a figure misses the bound, as a share of the bound; 0 where it holds."""
        if math.isnan(value):
            return math.inf
        gap = self.bound - value if self.measure.higher_is_better else value - self.bound
        return max(gap / self.bound, 0.0)

    def __str__(self) -> str:
        return f"{self.name}{'>' if self.measure.higher_is_better else '<'}{self.bound:g}"


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits, and the measure to be as good as possible within them."""

    limits: tuple[Limit, ...]
    aim: str

    @property
    def measure(self) -> Measure:
        """The measure of the aim."""
        return GOAL_MEASURES[self.aim]

    @property
    def shown(self) -> dict[str, Measure]:
        """The measures that the goal names, by name: limits first."""
        return {limit.name: limit.measure for limit in self.limits} | {self.aim: self.measure}

    def excess(self, outcome: Outcome) -> float:
        """By how much the limits are missed in all, each by its worst seed; 0 where all hold for every seed."""
        return math.fsum(max(map(limit.excess, outcome.values(limit.measure.path).tolist())) for limit in self.limits)

    def aimed(self, outcome: Outcome) -> float:
        """The figure aimed at as a cost, the mean over the seeds: lower is better; infinite where there is none."""
        value = float(np.mean(outcome.values(self.measure.path)))
        return math.inf if math.isnan(value) else (-value if self.measure.higher_is_better else value)

    def best(self, outcomes: Sequence[Outcome]) -> Outcome:
        """The outcome that serves the goal best: within the limits by the aim, or else the closest to them."""
        return min(outcomes, key=self.score)

    def score(self, outcome: Outcome) -> tuple[float, float]:
        """How bad an outcome is: any that keeps the limits comes before all that do not."""
        return self.excess(outcome), self.aimed(outcome)

    def __str__(self) -> str:
        direction = "max" if self.measure.higher_is_better else "min"
        return ", ".join([*map(str, self.limits), f"{direction} {self.aim}"])


def parse_goal(text: str) -> Goal:
    """A goal from clauses with commas: NAME<NUMBER, NAME>NUMBER, and at most one `min NAME` or `max NAME`.

    Times are seconds, or say ms. Raises ConfigError for anything else.
    """
    limits: dict[str, Limit] = {}
    aims: list[str] = []
    clauses = [clause.strip() for clause in text.split(",") if clause.strip()]
    if not clauses:
        raise ConfigError(f"goal: nothing in it; expected such as {GOAL_FORM!r}")
    for clause in clauses:
        word, _, name = clause.partition(" ")
        if word in ("min", "max"):
            aims.append(_aim(word, name.strip()))
            continue
        limit = _limit(clause)
        if limit.name in limits:
            raise ConfigError(f"goal {text!r}: {limit.name} is limited twice; say it once")
        limits[limit.name] = limit
    if len(aims) > 1:
        raise ConfigError(f"goal {text!r}: {len(aims)} aims; expected one min or max, and limits for the rest")
    return Goal(tuple(limits.values()), aims[0] if aims else DEFAULT_AIM)


def _aim(word: str, name: str) -> str:
    measure = _measure(name)
    better = "max" if measure.higher_is_better else "min"
    if word != better:
        raise ConfigError(f"goal '{word} {name}': {name} is better the other way; say '{better} {name}'")
    return name


def _limit(clause: str) -> Limit:
    found = _LIMIT.fullmatch(clause)
    if found is None:
        raise ConfigError(
            f"goal {clause!r}: expected NAME<NUMBER, NAME>NUMBER, min NAME or max NAME, such as {GOAL_FORM!r}"
        )
    name, sign, number = found.groups()
    measure = _measure(name)
    wanted = ">" if measure.higher_is_better else "<"
    if sign[0] != wanted:
        raise ConfigError(f"goal {clause!r}: {name} is better the other way; say {name}{wanted}{number}")
    return Limit(name, measure, _bound(clause, name, number))


def _bound(clause: str, name: str, number: str) -> float:
    found = _NUMBER.fullmatch(number)
    timed = "." in GOAL_MEASURES[name].path  # a statistic of times
    try:
        value = float(found[1]) * _UNITS[found[2]] if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not (math.isfinite(value) and value > 0) or (found[2] and not timed):
        expected = "a positive time, such as 2, 2s or 500ms" if timed else "a positive number"
        raise ConfigError(f"goal {clause!r}: {number}; expected {expected}")
    return value


def _measure(name: str) -> Measure:
    if name not in GOAL_MEASURES:
        raise ConfigError(f"goal: {name!r} is no measure; choose from: {', '.join(GOAL_MEASURES)}")
    return GOAL_MEASURES[name]
