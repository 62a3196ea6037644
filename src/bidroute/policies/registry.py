"""The registry of policies: a name, and a function that builds the policy from settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bidroute.errors import ConfigError
from bidroute.policies.base import Policy

Builder = Callable[["PolicySettings"], Policy]
_BUILDERS: dict[str, Builder] = {}


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy may be built from: a seed, the objective (a preset's name or term=weight pairs), and options."""

    seed: int = 0
    objective: str = "balanced"
    options: dict[str, Any] = field(default_factory=dict)


def register(name: str) -> Callable[[Builder], Builder]:
    """Register the decorated builder under `name`. Raises ConfigError when the name is taken."""

    def add(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ConfigError(f"policy {name!r} is registered twice; choose another name")
        _BUILDERS[name] = builder
        return builder

    return add


def policy_names() -> list[str]:
    """All registered names, in order of registration."""
    return list(_BUILDERS)


def build_policy(name: str, settings: PolicySettings | None = None) -> Policy:
    """Build the policy registered under `name`. Raises ConfigError, listing the names, when there is none."""
    try:
        builder = _BUILDERS[name]
    except KeyError:
        known = ", ".join(policy_names())
        raise ConfigError(f"policy {name!r} is unknown; choose from: {known}") from None
    return builder(settings or PolicySettings())
