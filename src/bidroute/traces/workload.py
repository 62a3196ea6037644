"""A workload: arrivals with their lengths, by column. Every trace reader and every generator makes one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import TraceError


@dataclass(frozen=True, slots=True)
class Workload:
    """`arrival_s` float64[n] (non-decreasing, starts at 0), `prompt_tokens` and `output_tokens` int64[n]."""

    name: str
    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    skipped_rows: int = 0

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        if n == 0:
            raise TraceError(f"{self.name}: no requests; expected at least one")
        if len(self.prompt_tokens) != n or len(self.output_tokens) != n:
            raise TraceError(f"{self.name}: columns of unequal length")
        if np.any(np.diff(self.arrival_s) < 0):
            row = int(np.argmax(np.diff(self.arrival_s) < 0)) + 1
            raise TraceError(f"{self.name}: request {row} arrives before the one ahead of it; sort by time")

    def __len__(self) -> int:
        return len(self.arrival_s)

    def head(self, requests: int) -> Workload:
        """The first `requests` of it."""
        k = slice(0, requests)
        return Workload(self.name, self.arrival_s[k], self.prompt_tokens[k], self.output_tokens[k], self.skipped_rows)

    def sped_up(self, factor: float) -> Workload:
        """The same requests, arriving `factor` times faster."""
        return Workload(self.name, self.arrival_s / factor, self.prompt_tokens, self.output_tokens, self.skipped_rows)
