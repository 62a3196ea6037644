"""What arrived recently: the forecast of what will compete with the queue, and how fast."""

from __future__ import annotations

import numpy as np

from bidroute.core.queue import FloatArray, IntArray

MEMORY = 512
SHORTEST_SPAN_S = 1e-3  # a burst within less says nothing about the rate
PAUSE_ARRIVALS = 32  # a gap longer than all remembered ones together, of so many arrivals or more, is a pause


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
        if self._seen:
            self._close_gap(now_s)
        place = self._seen % len(self._arrival_s)
        self._arrival_s[place] = now_s
        self._columns[:, place] = prompt_tokens, length_class
        self._seen += 1

    def rate_per_s(self, now_s: float) -> float:
        """Arrivals per second since the oldest one remembered; 0 while they all came at one moment, this one."""
        n = len(self)
        span_s = now_s - float(self._arrival_s[self._oldest])
        if n < 2 or span_s <= 0.0:
            return 0.0
        return (n - 1) / max(span_s, SHORTEST_SPAN_S)

    def _close_gap(self, now_s: float) -> None:
        """Move the remembered arrivals up to this one where the clock was set back or nothing came for long.

        A pause counts as long as all that is remembered: else one night without requests would hide the rate of the
        next morning until everything before it is forgotten. Many pauses in a row still halve the rate each time.
        """
        memory = len(self._arrival_s)
        newest_s = float(self._arrival_s[(self._seen - 1) % memory])
        span_s = newest_s - float(self._arrival_s[self._oldest])
        gap_s = now_s - newest_s
        if gap_s < 0.0:
            self._arrival_s += gap_s
        elif len(self) >= PAUSE_ARRIVALS and gap_s > span_s > 0.0:
            self._arrival_s += gap_s - span_s

    @property
    def _oldest(self) -> int:
        """The place of the oldest arrival remembered."""
        return self._seen % len(self._arrival_s) if self._seen > len(self._arrival_s) else 0
