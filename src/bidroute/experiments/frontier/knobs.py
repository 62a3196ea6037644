"""The knobs of bid_price that a search may turn: their usual ranges, and how a user names others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError

DIGITS = 3  # significant ones that a setting keeps: enough to tell settings apart, short enough to type
GRID_VALUES = 3  # of a range, in a grid search
_FORM = "expected NAME=LOW..HIGH or NAME=VALUE,VALUE,…, such as patience=1..2.5 or tail=15,30,60"


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting and where to look for it: from `low` to `high`, or only at `values` where some are given.

    `scale` is `linear`, `log` or `whole`. `option` marks an option of the policy; all others belong to the objective.
    """

    name: str
    low: float
    high: float
    scale: str = "linear"
    option: bool = False
    values: tuple[float, ...] = ()

    def at(self, share: float) -> float:
        """The setting at a share of the range, 0 to 1, rounded to what is typed."""
        if self.values:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** share
        elif self.scale == "whole":
            value = float(min(math.floor(self.low + share * (self.high - self.low + 1.0)), self.high))
        else:
            value = self.low + share * (self.high - self.low)
        return short(value)

    def share_of(self, value: float) -> float:
        """Where in the range a setting lies, 0 to 1: the inverse of `at`, for ranges."""
        low, high = self.low, self.high
        if self.scale == "log":
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return float(np.clip((value - low) / (high - low), 0.0, 1.0)) if high > low else 0.0

    def grid(self) -> tuple[float, ...]:
        """The settings of a grid search: the values given, or the ends and the middle of the range."""
        if self.values:
            return self.values
        return tuple(dict.fromkeys(self.at(share) for share in np.linspace(0.0, 1.0, GRID_VALUES)))


# Ranges around the defaults and the presets, from little of each to much.
KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("patience", 0.7, 3.0),
        Knob("tail", 3.0, 120.0, "log"),
        Knob("latency", 0.0, 2.0),
        Knob("ttft", 0.0, 2.0),
        Knob("goodput", 0.0, 3.0),
        Knob("throughput", 0.0, 2.0),
        Knob("sigma", 0.0, 2.0),
        Knob("alpha", 0.0, 5.0),
        Knob("beta", 0.0, 0.1),
        Knob("gamma", 0.0, 0.1),
        Knob("horizon_s", 10.0, 300.0, "log"),
        Knob("threshold_s", 1.0, 100.0, "log"),
        Knob("risk_z", 0.5, 3.0, option=True),
        Knob("max_skips", 0.0, 32.0, "whole", option=True),
        Knob("step", 0.005, 0.15, "log", option=True),
    )
}
WEIGHTS = ("patience", "tail", "latency", "ttft", "goodput")
SWEPT = (*WEIGHTS, "risk_z", "max_skips", "step")


def chosen_knobs(texts: Sequence[str] | None, usual: Sequence[str] = SWEPT) -> list[Knob]:
    """The knobs of `NAME`, `NAME=LOW..HIGH` or `NAME=VALUE,VALUE,…`; the `usual` ones where none is given.

    Raises ConfigError for an unknown name, a name given twice, and for what is not a range or a list.
    """
    if not texts:
        return [KNOBS[name] for name in usual]
    knobs: dict[str, Knob] = {}
    for text in texts:
        knob = _parse(text.strip())
        if knob.name in knobs:
            raise ConfigError(f"knob {knob.name} is given twice; give it once")
        knobs[knob.name] = knob
    return list(knobs.values())


def _parse(text: str) -> Knob:
    name, equals, where = (part.strip() for part in text.partition("="))
    if name not in KNOBS:
        raise ConfigError(f"knob {name!r} is unknown; choose from: {', '.join(KNOBS)}")
    usual = KNOBS[name]
    if not equals:
        return usual
    low, dots, high = where.partition("..")
    if not dots:
        return replace(usual, values=tuple(_number(usual, text, value) for value in where.split(",")))
    ends = _number(usual, text, low), _number(usual, text, high)
    if not ends[0] < ends[1]:
        raise ConfigError(f"knob {text!r}: {low} is not below {high}; {_FORM}")
    scale = "linear" if usual.scale == "log" and ends[0] == 0.0 else usual.scale
    return replace(usual, low=ends[0], high=ends[1], scale=scale)


def _number(knob: Knob, text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"knob {text!r}: {value!r} is not a number; {_FORM}") from None
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"knob {text!r}: {value}; expected finite numbers, 0 or more")
    if knob.scale == "whole" and number != int(number):
        raise ConfigError(f"knob {text!r}: {value}; expected whole numbers")
    return number


def short(value: float) -> float:
    """The number with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def drawn(knobs: Sequence[Knob], shares: FloatArray) -> dict[str, float]:
    """The settings at `shares` float64[knobs], each 0 to 1."""
    return {knob.name: knob.at(float(share)) for knob, share in zip(knobs, shares, strict=True)}
