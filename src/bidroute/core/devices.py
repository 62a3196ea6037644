"""Devices: what one decode worker can hold and how fast it goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bidroute.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """One worker: batch slots (requests), KV capacity (tokens), block size (tokens), and its pace.

    `token_budget` is the number of tokens that one of its iterations may process, of prompts in chunks and one for each
    request that decodes; 0 where it only decodes, or where the budget is not known.

    `period_s` is the expected duration of one decode iteration, a prior that observed iterations replace.
    `speed` is the relative throughput (tokens/s against the other devices) that weighted baselines use.
    """

    name: str
    batch_slots: int
    kv_tokens: int
    block_size: int = 1
    period_s: float = 0.02
    speed: float = 1.0
    token_budget: int = 0

    def __post_init__(self) -> None:
        for field in ("batch_slots", "kv_tokens", "block_size"):
            if getattr(self, field) < 1:
                raise ConfigError(f"device {self.name}: {field}={getattr(self, field)}; expected 1 or more")
        if self.token_budget < 0:
            raise ConfigError(
                f"device {self.name}: token_budget={self.token_budget}; expected tokens per iteration, 0 for none"
            )
        for field in ("period_s", "speed"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"device {self.name}: {field}={value}; expected a positive number")

    def fits(self, tokens: int) -> bool:
        """Whether a request whose KV peaks at `tokens` could run here alone."""
        return -(-tokens // self.block_size) * self.block_size <= self.kv_tokens
