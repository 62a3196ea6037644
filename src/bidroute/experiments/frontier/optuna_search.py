"""A multi-objective search by optuna: tree-structured Parzen estimators over all measures of the front at once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution

from bidroute.experiments.frontier.knobs import Knob, drawn
from bidroute.experiments.frontier.outcomes import FRONT_MEASURES, Outcome, costs
from bidroute.experiments.frontier.search import BATCH, Settings


class OptunaSearch:
    """Asks for BATCH settings at a time. Every knob is a share of its range, so that optuna needs no ranges itself."""

    def __init__(self, knobs: Sequence[Knob], points: int, seed: int) -> None:
        self.points = points
        self._knobs = list(knobs)
        self._space: dict[str, BaseDistribution] = {knob.name: FloatDistribution(0.0, 1.0) for knob in knobs}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self._study = optuna.create_study(directions=["minimize"] * len(FRONT_MEASURES), sampler=sampler)
        self._asked: list[Any] = []
        self._proposed = 0

    def batch(self) -> list[Settings]:
        """What optuna wants to know next."""
        count = min(BATCH, self.points - self._proposed)
        self._proposed += count
        self._asked = [self._study.ask(self._space) for _ in range(count)]
        names = list(self._space)
        return [drawn(self._knobs, np.array([trial.params[name] for name in names])) for trial in self._asked]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Tell optuna, as costs; a run without figures has failed."""
        for trial, cost in zip(self._asked, costs(outcomes), strict=True):
            if np.isfinite(cost).all():
                self._study.tell(trial, cost.tolist())
            else:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
