"""What a sweep runs: a policy under an objective, written as a user would type them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bidroute.core.objective import PRESETS
from bidroute.experiments.frontier.knobs import KNOBS
from bidroute.experiments.verdict import SUBJECT

BASELINES = (
    "join_shortest_queue",
    "weighted_least_connections",
    "fifo+safety",
    "least_footprint+safety",
    "least_footprint+safety+ageing",
)
FOUND, PRESET, BASELINE = "found", "preset", "baseline"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with its options, and an objective; `kind` is `found` (by the search), `preset` or `baseline`.

    `knobs` are the settings that a search chose; empty for the others.
    """

    kind: str
    policy: str
    objective: str
    knobs: tuple[tuple[str, float], ...] = ()

    @property
    def key(self) -> str:
        """What makes two candidates the same run."""
        return f"{self.policy} {self.objective}"

    @property
    def label(self) -> str:
        """How tables and charts call it."""
        if self.kind == FOUND:
            return " ".join(f"{name}={value:g}" for name, value in self.knobs) or self.objective
        return self.objective if self.kind == PRESET else self.policy

    @property
    def options(self) -> str:
        """What to type to get it from `bidroute compare`."""
        objective = "" if self.kind == BASELINE else f" --objective {self.objective}"
        return f"--policies {self.policy}{objective}"


def found(base: str, knobs: Mapping[str, float]) -> Candidate:
    """bid_price with these settings, on top of the objective `base`."""
    options = [f"{name}={value:g}" for name, value in knobs.items() if KNOBS[name].option]
    changes = [f"{name}={value:g}" for name, value in knobs.items() if not KNOBS[name].option]
    kept = [part.strip() for part in base.split(",") if part.partition("=")[0].strip() not in knobs]
    objective = ",".join([*kept, *changes]) or "balanced"
    return Candidate(FOUND, ":".join([SUBJECT, *options]), objective, tuple(knobs.items()))


def presets() -> list[Candidate]:
    """bid_price with every preset objective."""
    return [Candidate(PRESET, SUBJECT, name) for name in PRESETS]


def baselines(names: Sequence[str] = BASELINES) -> list[Candidate]:
    """Policies to compare with; they know no objective."""
    return [Candidate(BASELINE, name, "balanced") for name in dict.fromkeys(names)]
