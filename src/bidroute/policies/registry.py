"""The registry of policies: a name, and a function that builds the policy from settings.

Every module of this package is imported with it, so a policy in a file of its own registers itself. Wherever a
policy is named, options may follow: `power_of_d:d=3`, `bid_price:risk_z=2:max_skips=4`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bidroute.errors import ConfigError
from bidroute.policies.base import Policy

Builder = Callable[["PolicySettings"], Policy]
_BUILDERS: dict[str, Builder] = {}
_VARIANTS: set[str] = set()


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy may be built from: a seed, the objective (a preset's name or term=weight pairs), and options.

    Builders read the options with `number` and `whole`; an option that none asks for is refused.
    """

    seed: int = 0
    objective: str = "balanced"
    options: dict[str, Any] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def number(self, option: str, default: float) -> float:
        """A numeric option. Raises ConfigError when it is not a finite number."""
        self.asked.add(option)
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


def build_policy(text: str, settings: PolicySettings | None = None) -> Policy:
    """Build the policy `NAME` or `NAME:option=value:…`, whose options come on top of those in `settings`.

    Raises ConfigError for a name that is not registered, listing those that are, and for options it does not take.
    """
    name, options = split_options(text)
    try:
        builder = _BUILDERS[name]
    except KeyError:
        known = ", ".join(policy_names())
        raise ConfigError(f"policy {name!r} is unknown; choose from: {known}") from None
    settings = settings or PolicySettings()
    own = replace(settings, options={**settings.options, **options})
    policy = builder(own)
    unknown = sorted(set(own.options) - own.asked)
    if unknown:
        known = f"choose from: {', '.join(sorted(own.asked))}" if own.asked else "it takes none"
        raise ConfigError(f"policy {name} has no option {unknown[0]!r}; {known}")
    return policy


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """The name in `NAME:option=value:…` and its options, numbers where they read as such."""
    name, *parts = (part.strip() for part in text.split(":"))
    options: dict[str, Any] = {}
    for part in parts:
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not (option and equals and value):
            raise ConfigError(f"policy {text!r}: {part!r} is not option=value; expected such as power_of_d:d=3")
        if option in options:
            raise ConfigError(f"policy {text!r}: {option} is given twice; give it once")
        options[option] = _number_or_text(value)
    return name, options


def _number_or_text(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
