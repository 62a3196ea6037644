"""What arrived recently: the forecast of what will compete with the queue, and how fast."""

from __future__ import annotations

import numpy as np

from bidroute.core.queue import FloatArray, IntArray

MEMORY = 512


class ArrivalHistory:
    """The last `memory` arrivals: `prompt_tokens` and `length_class`, int64[n] in no set order, and their rate."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._arrival_s: FloatArray = np.zeros(memory)
        self._columns: IntArray = np.zeros((2, memory), dtype=np.int64)
        self._seen = 0

    def __len__(self) -> int:
        return min(self._seen, len(self._arrival_s))

    @property
    def prompt_tokens(self) -> IntArray:
        """Prompt tokens of the remembered arrivals."""
        return self._columns[0, : len(self)]

    @property
    def length_class(self) -> IntArray:
        """Length classes of the remembered arrivals."""
        return self._columns[1, : len(self)]

    def add(self, now_s: float, prompt_tokens: int, length_class: int) -> None:
        """A request arrived; the oldest one remembered is forgotten."""
        place = self._seen % len(self._arrival_s)
        self._arrival_s[place] = now_s
        self._columns[:, place] = prompt_tokens, length_class
        self._seen += 1

    def rate_per_s(self, now_s: float) -> float:
        """Arrivals per second since the oldest one remembered; 0 before there are two."""
        n = len(self)
        if n < 2:
            return 0.0
        oldest_s = (
            self._arrival_s[self._seen % len(self._arrival_s)] if n == len(self._arrival_s) else self._arrival_s[0]
        )
        return float(n / max(now_s - oldest_s, 1e-3))
