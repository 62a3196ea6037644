"""Settings written as short texts: the mode, the engine, SLOs. Errors say what was expected."""

from __future__ import annotations

import re
from typing import Any

from bidroute.errors import ConfigError
from bidroute.experiments.settings import MOST_DEVICES
from bidroute.simulator import EngineConfig, Slo

_WHOLE = ("block_size", "max_batched_tokens")
_SLOS = ("ttft", "e2e", "tpot")
_ENGINE_FORM = "block_size=N,max_batched_tokens=N,eviction=preempt|reserve,budget=told|hidden"


def parse_mode(text: str) -> tuple[str, int]:
    """`decode`, `aggregated` or `disaggregated:P` as a mode and its number of prefill workers (0 for others)."""
    if text in ("decode", "aggregated"):
        return text, 0
    name, _, workers = text.partition(":")
    if name == "disaggregated" and re.fullmatch("[0-9]{1,6}", workers) and 0 < int(workers) <= MOST_DEVICES:
        return name, int(workers)
    raise ConfigError(
        f"mode {text!r}; expected decode, aggregated, or disaggregated:P with P prefill workers, 1 to {MOST_DEVICES}"
    )


def parse_engine(text: str, recompute_s_per_token: float) -> EngineConfig:
    """Engine settings from `key=value,…`; empty means the defaults."""
    pairs = _pairs("engine", text, (*_WHOLE, "eviction", "budget"), _ENGINE_FORM)
    given: dict[str, Any] = {key: _whole(key, value) if key in _WHOLE else value for key, value in pairs.items()}
    return EngineConfig(**given, recompute_s_per_token=recompute_s_per_token)


def parse_slo(text: str) -> Slo:
    """SLOs from `ttft=S,e2e=S,tpot=S` in seconds; those not given keep their defaults."""
    pairs = _pairs("slo", text, _SLOS, "ttft=S,e2e=S,tpot=S in seconds")
    slos = {}
    for key, value in pairs.items():
        try:
            slos[f"{key}_s"] = float(value)
        except ValueError:
            raise ConfigError(f"slo {key}={value}; expected a positive number of seconds") from None
    return Slo(**slos)


def _pairs(what: str, text: str, keys: tuple[str, ...], form: str) -> dict[str, str]:
    """`key=value,…` as a dictionary of known keys, each given once."""
    pairs: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in keys:
            raise ConfigError(f"{what} {part!r} is not a setting; expected {form}")
        if key in pairs:
            raise ConfigError(f"{what} {key} is given twice; give it once")
        pairs[key] = value
    return pairs


def _whole(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"engine {key}={value}; expected a whole number, 1 or more") from None
