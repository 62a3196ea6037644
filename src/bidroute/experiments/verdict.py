"""Who wins, on what, and by how much: one policy against the strongest of the others, on the same arrivals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.experiments.measures import MEASURES, Measure
from bidroute.experiments.results import Comparison

SUBJECT = "bid_price"
TIE = 0.005  # a median change smaller than this counts as level
FLOOR_S = 1e-3  # latencies below this are taken as this before ratios are formed


@dataclass(frozen=True, slots=True)
class Change:
    """The subject's figure against another policy's, seed by seed on the same arrivals.

    `relative` (subject / other − 1): median over seeds, with `low` and `high`; NaN where a ratio makes no sense.
    `absolute` is the median difference. `outcome` is +1 better, −1 worse, 0 level or not the same for all seeds.
    """

    measure: Measure
    other: str
    relative: float
    low: float
    high: float
    absolute: float
    outcome: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`subject` against `strongest`, measure by measure, and `losses`: the best other policy where it beats it."""

    subject: str
    strongest: str
    changes: list[Change]
    losses: list[Change]


def judge(comparison: Comparison) -> Verdict | None:
    """The verdict on bid_price (the best one where it ran with several options), or where it was not run on the policy
    that did best; None for one policy alone."""
    policies = comparison.policies
    if len(policies) < 2:
        return None
    order = sorted(policies, key=lambda policy: score(comparison, policy))
    subject = SUBJECT if SUBJECT in policies else next(filter(is_subject, order), order[0])
    strongest = next(policy for policy in order if policy != subject)
    changes = [change(comparison, measure, subject, strongest) for measure in MEASURES]
    others = [policy for policy in policies if policy != subject]
    against_best = [change(comparison, m, subject, best(comparison, m, others)) for m in MEASURES]
    return Verdict(subject, strongest, changes, [one for one in against_best if one.outcome < 0])


def is_subject(policy: str) -> bool:
    """Whether this is bid_price, with whatever options."""
    return policy.partition(":")[0] == SUBJECT


def score(comparison: Comparison, policy: str) -> float:
    """How good a policy is in latency: the mean logarithm of its deciding figures; lower is better."""
    medians = [comparison.spread(policy, measure.path).median for measure in MEASURES if measure.decides]
    value = float(np.mean([math.log(max(figure, FLOOR_S)) for figure in medians]))
    return value if math.isfinite(value) else math.inf


def best(comparison: Comparison, measure: Measure, policies: list[str]) -> str:
    """The policy whose median is best in this measure (the first of equals)."""
    sign = -1.0 if measure.higher_is_better else 1.0

    def key(policy: str) -> float:
        value = sign * comparison.spread(policy, measure.path).median
        return value if math.isfinite(value) else math.inf

    return min(policies, key=key)


def change(comparison: Comparison, measure: Measure, subject: str, other: str) -> Change:
    """How the subject's figure differs from the other policy's, paired by seed."""
    mine, theirs = comparison.values(subject, measure.path), comparison.values(other, measure.path)
    difference = mine - theirs
    relative = np.divide(difference, theirs, out=np.full(len(theirs), np.nan), where=theirs > 0)
    middle = float(np.median(relative))
    return Change(
        measure,
        other,
        middle,
        float(np.min(relative)),
        float(np.max(relative)),
        float(np.median(difference)),
        _outcome(difference, middle, measure),
    )


def _outcome(difference: FloatArray, relative: float, measure: Measure) -> int:
    gain = difference if measure.higher_is_better else -difference
    if abs(relative) < TIE:
        return 0
    if np.all(gain > 0):
        return 1
    return -1 if np.all(gain < 0) else 0
