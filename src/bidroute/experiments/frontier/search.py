"""How a search chooses its settings: a grid, seeded random draws, draws that close in on a goal, or optuna.

Every search proposes in batches and learns the outcomes of one batch before the next, in order, so what it finds does
not depend on how many processes ran it, and a search that is run again proposes the same settings again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import product
from typing import Protocol

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.experiments.frontier.knobs import Knob, drawn
from bidroute.experiments.frontier.outcomes import Outcome

Settings = dict[str, float]
Score = tuple[float, float]  # lower is better, the first counting before the second
SEARCHES = ("random", "grid", "optuna")
BATCH = 8  # settings proposed at once by searches that learn
_STEP = 0.12  # of a knob's range: how far `Closing` looks around the best, at first
_SHRINK = 0.8  # of that, from batch to batch


class Search(Protocol):
    """Proposes settings."""

    @property
    def points(self) -> int:
        """How many it will propose in all."""
        ...

    def batch(self) -> list[Settings]:
        """The next settings to run; none when the search has ended."""
        ...

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """What the settings of the last batch reached, in their order."""
        ...


class Listed:
    """Settings that are all known beforehand: one batch."""

    def __init__(self, settings: Sequence[Settings]) -> None:
        self._settings = list(settings)
        self.points = len(self._settings)

    def batch(self) -> list[Settings]:
        """All of them, once."""
        settings, self._settings = self._settings, []
        return settings

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn."""


class Closing:
    """Random draws first, then draws around the best so far, closer and closer; `worse` scores an outcome."""

    def __init__(self, knobs: Sequence[Knob], points: int, seed: int, worse: Callable[[Outcome], Score]) -> None:
        self.points = points
        self._knobs = list(knobs)
        self._random = np.random.default_rng(seed)
        self._worse = worse
        self._drawn: list[FloatArray] = []
        self._scored: list[tuple[Score, int]] = []

    def batch(self) -> list[Settings]:
        """Half of the points spread over the ranges, then BATCH at a time around the best."""
        done = len(self._drawn)
        spread = self.points - self.points // 2
        if done == 0:
            shares = list(self._random.random((spread, len(self._knobs))))
        else:
            count = min(BATCH, self.points - done)
            width = _STEP * _SHRINK ** ((done - spread) // BATCH)
            best = self._drawn[min(self._scored)[1]]
            shares = [np.clip(best + self._random.normal(0.0, width, len(best)), 0.0, 1.0) for _ in range(count)]
        self._drawn += shares
        return [drawn(self._knobs, share) for share in shares]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Keep the scores."""
        for outcome in outcomes:
            self._scored.append((self._worse(outcome), len(self._scored)))


def build_search(kind: str, knobs: Sequence[Knob], points: int, seed: int) -> Search:
    """The search `random`, `grid` or `optuna` over these knobs.

    Raises ConfigError for another name, for a grid of more than `points`, and where optuna is not installed.
    """
    if kind not in SEARCHES:
        raise ConfigError(f"search {kind!r} is unknown; choose from: {', '.join(SEARCHES)}")
    if points < 0:
        raise ConfigError(f"points: {points}; expected a whole number, 0 (presets and baselines only) or more")
    if points == 0:
        return Listed([])
    if kind == "grid":
        return Listed(_grid(knobs, points))
    if kind == "random":
        return Listed([drawn(knobs, share) for share in np.random.default_rng(seed).random((points, len(knobs)))])
    if find_spec("optuna") is None:
        raise ConfigError("search optuna needs optuna; run: pip install 'bidroute[sweep]', or use --search random")
    from bidroute.experiments.frontier.optuna_search import OptunaSearch  # heavy, and an extra

    return OptunaSearch(knobs, points, seed)


def _grid(knobs: Sequence[Knob], points: int) -> list[Settings]:
    values = [knob.grid() for knob in knobs]
    count = math.prod(len(one) for one in values)
    if count > points:
        sizes = " × ".join(f"{knob.name} {len(one)}" for knob, one in zip(knobs, values, strict=True))
        raise ConfigError(
            f"the grid has {count} points ({sizes}) and --points is {points}; name fewer knobs with --knob, or raise "
            f"--points to {count}"
        )
    return [dict(zip((knob.name for knob in knobs), chosen, strict=True)) for chosen in product(*values)]
