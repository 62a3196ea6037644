"""The objective: what starting a request now is worth, as named, weighted terms.

Two families (docs/how-it-works.md has the formulas and the units of every weight):

* `slo`, after the paper: constant throughput, bonuses that decay with the predicted completion and first-token
  times, and a tail term. The paper's tail bonus is a constant past a threshold; ours keeps growing with the
  overdue time, which is what bounds every request's wait.
* `linear`, after the authors' artifact: σ + α·tokens + β·(T − completion)⁺ + γ·(T − start)⁺.

Weights are per request and have no unit unless said; scaling all of them by a constant changes no decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from bidroute.core.queue import BoolArray, FloatArray
from bidroute.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Objective:
    """Weights of the reward terms.

    slo family: `throughput` (constant); `latency` (× 1/(1 + completion_s)); `ttft` (× 1/(1 + ttft_s)); `tail`
    (× lateness², lateness = (overdue time past the threshold)/threshold); `goodput` (× 1 + 10·used⁴ while the
    request can still meet its own SLOs, of whose time until its latest start it has used up this share; else 0).
    linear family: `sigma` (constant), `alpha` (per 1000 expected tokens), `beta` (per second completed before
    `horizon_s`), `gamma` (per second started before it); `tail` applies there too.

    `threshold_s` is the completion time past which a request is overdue; 0 lets the policy track it from the
    fleet itself (`patience` × the mean time that requests spend in the system). `priority_base` multiplies the
    reward per unit of priority.
    """

    throughput: float = 1.0
    latency: float = 0.0
    ttft: float = 0.0
    tail: float = 45.0
    goodput: float = 0.0
    sigma: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    horizon_s: float = 60.0
    threshold_s: float = 0.0
    patience: float = 1.4
    priority_base: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"objective: {field.name}={value}; expected a finite number, 0 or more")
            if value > _LARGEST:
                raise ConfigError(
                    f"objective: {field.name}={value:g}; expected {_LARGEST:g} at most; only ratios matter"
                )
        if not any(getattr(self, name) > 0 for name in _WEIGHTS):
            raise ConfigError(f"objective: every weight is 0; give one of {', '.join(_WEIGHTS)} a positive value")
        for name in ("horizon_s", "patience", "priority_base"):
            if getattr(self, name) == 0:
                raise ConfigError(f"objective: {name}=0; expected a positive number")

    def scaled(self, factor: float) -> Objective:
        """The same objective with every weight multiplied by `factor`."""
        return replace(self, **{name: getattr(self, name) * factor for name in _WEIGHTS})

    def weights(self) -> FloatArray:
        """What the decision kernel needs: the weights, then horizon_s, priority_base, the share of service."""
        return _weights_of(self)

    def terms(
        self,
        wait_s: FloatArray,
        service_s: FloatArray,
        first_token_s: FloatArray,
        expected_tokens: FloatArray,
        slo_s: FloatArray,
        threshold_s: float,
    ) -> dict[str, FloatArray]:
        """Reward by term for requests that would start now, for arrays of any shapes that broadcast together.

        `wait_s` so far, `service_s` the predicted decode time, `first_token_s` from start to first token,
        `slo_s` the latest completion after arrival that meets the request's SLOs (infinity: none),
        `threshold_s` the completion time past which a request is overdue.
        """
        completion_s = wait_s + service_s
        result: dict[str, FloatArray] = {}
        if self.throughput:
            result["throughput"] = np.full_like(completion_s, self.throughput)
        if self.latency:
            result["latency"] = self.latency / (1.0 + completion_s)
        if self.ttft:
            result["ttft"] = np.broadcast_to(self.ttft / (1.0 + wait_s + first_token_s), completion_s.shape)
        if self.goodput:
            latest_s = slo_s - service_s
            used = wait_s / np.where(latest_s > 0.0, latest_s, np.inf)
            result["goodput"] = np.where(wait_s <= latest_s, self.goodput * (1.0 + URGENCY * used**4), 0.0)
        if self.sigma:
            result["sigma"] = np.full_like(completion_s, self.sigma)
        if self.alpha:
            result["alpha"] = np.broadcast_to(self.alpha * expected_tokens / 1000.0, completion_s.shape)
        if self.beta:
            result["beta"] = self.beta * np.maximum(self.horizon_s - completion_s, 0.0)
        if self.gamma:
            result["gamma"] = np.broadcast_to(self.gamma * np.maximum(self.horizon_s - wait_s, 0.0), completion_s.shape)
        if self.tail:
            lateness = np.maximum((wait_s + SERVICE_SHARE * service_s) / threshold_s - 1.0, 0.0)
            result["tail"] = self.tail * lateness * lateness
        return result

    def worth(
        self, wait_s: FloatArray, ttft_s: FloatArray, e2e_s: FloatArray, output_tokens: FloatArray, in_time: BoolArray
    ) -> FloatArray:
        """What served requests were worth, at the times that came about: every term that never grows with them.

        That leaves out the tail, and the urgency within goodput. They make a router take those that have waited long; a
        measure with them would pay for having let them wait. `in_time`: which met their SLOs. All float64[n].
        """
        worth = self.throughput + self.sigma + self.alpha * output_tokens / 1000.0 + self.goodput * in_time
        worth = worth + self.latency / (1.0 + e2e_s) + self.ttft / (1.0 + ttft_s)
        worth = worth + self.beta * np.maximum(self.horizon_s - e2e_s, 0.0)
        total: FloatArray = worth + self.gamma * np.maximum(self.horizon_s - wait_s, 0.0)
        return total

    def priority_factor(self, priority: FloatArray) -> FloatArray:
        """What a priority multiplies the reward with, float64[n]."""
        factor: FloatArray = np.power(self.priority_base, np.clip(priority, -20.0, 20.0))
        return factor


# How much of its own service time counts towards a request's lateness: a long request gets a head start that it
# needs to finish in time, but not the whole of it, which would turn the order into longest first.
SERVICE_SHARE = 0.5
# How many times its goodput weight a request that must start now to meet its SLO is worth more than a fresh one. It
# grows with the fourth power of the share of its time that it has used up: late, so that until then the order is that
# of footprints, by which most requests can be served in time.
URGENCY = 10.0

_LARGEST = 1e100
_WEIGHTS = ("throughput", "latency", "ttft", "tail", "goodput", "sigma", "alpha", "beta", "gamma")


@lru_cache(maxsize=16)
def _weights_of(objective: Objective) -> FloatArray:
    numbers = [getattr(objective, name) for name in _WEIGHTS]
    return np.array([*numbers, objective.horizon_s, objective.priority_base, SERVICE_SHARE])


# Measured (docs/results.md). The patient ones pay where output lengths can be told apart in advance; where they
# cannot, the order errs more the longer it is trusted, and the policy has less patience by itself.
PRESETS: dict[str, Objective] = {
    "balanced": Objective(),
    "ttft": Objective(ttft=0.3, tail=15.0, patience=2.5),
    "latency": Objective(latency=0.5, tail=15.0, patience=10.0),
    "throughput": Objective(tail=60.0, patience=1.0),
    "tail": Objective(tail=60.0, patience=1.1),
    "goodput": Objective(throughput=0.2, goodput=2.0, tail=5.0, patience=2.5),
}


def parse_objective(text: str) -> Objective:
    """An objective from `PRESET`, `term=weight,…`, or `PRESET,term=weight,…` (changes to a preset).

    Raises ConfigError for an unknown preset or term, or a value that is not a number ≥ 0.
    """
    objective, changes = PRESETS["balanced"], {}
    names = [field.name for field in fields(Objective)]
    for index, part in enumerate(item.strip() for item in text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            if index or part not in PRESETS:
                raise ConfigError(
                    f"objective {part!r}: expected a preset ({', '.join(PRESETS)}) or term=weight pairs "
                    f"({', '.join(names)})"
                )
            objective = PRESETS[part]
        elif name not in names:
            raise ConfigError(f"objective term {name!r} is unknown; choose from: {', '.join(names)}")
        elif name in changes:
            raise ConfigError(f"objective term {name} is given twice; give it once")
        else:
            try:
                changes[name] = float(value)
            except ValueError:
                raise ConfigError(f"objective: {name}={value!r}; expected a number") from None
    return replace(objective, **changes)
