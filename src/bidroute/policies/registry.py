"""The registry of policies: a name, and a function that builds the policy from settings.

Every module of this package is imported with it, so a policy in a file of its own registers itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bidroute.errors import ConfigError
from bidroute.policies.base import Policy

Builder = Callable[["PolicySettings"], Policy]
_BUILDERS: dict[str, Builder] = {}
_VARIANTS: set[str] = set()


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy may be built from: a seed, the objective (a preset's name or term=weight pairs), and options."""

    seed: int = 0
    objective: str = "balanced"
    options: dict[str, Any] = field(default_factory=dict)

    def number(self, option: str, default: float) -> float:
        """A numeric option. Raises ConfigError when it is not a finite number."""
        value = self.options.get(option, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"policy option {option}={value!r}; expected a finite number")
        return float(value)

    def whole(self, option: str, default: int) -> int:
        """A whole-number option. Raises ConfigError when it is none."""
        value = self.number(option, default)
        if value != int(value):
            raise ConfigError(f"policy option {option}={value!r}; expected a whole number")
        return int(value)


def register(name: str, *, variant: bool = False) -> Callable[[Builder], Builder]:
    """Register the decorated builder under `name`; a `variant` is not part of what "all" stands for.

    Raises ConfigError when the name is taken.
    """

    def add(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ConfigError(f"policy {name!r} is registered twice; choose another name")
        _BUILDERS[name] = builder
        if variant:
            _VARIANTS.add(name)
        return builder

    return add


def policy_names() -> list[str]:
    """All registered names, in order of registration."""
    return list(_BUILDERS)


def compared_names() -> list[str]:
    """What "all" stands for in a comparison: every registered name except the variants."""
    return [name for name in _BUILDERS if name not in _VARIANTS]


def build_policy(name: str, settings: PolicySettings | None = None) -> Policy:
    """Build the policy registered under `name`. Raises ConfigError, listing the names, when there is none."""
    try:
        builder = _BUILDERS[name]
    except KeyError:
        known = ", ".join(policy_names())
        raise ConfigError(f"policy {name!r} is unknown; choose from: {known}") from None
    return builder(settings or PolicySettings())
