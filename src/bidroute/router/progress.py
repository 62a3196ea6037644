"""Tell an engine that hangs from one that is busy: by its own counters, and by what comes out of its streams."""

from __future__ import annotations

import math

from bidroute.router.readings import Reading

PREFILL_TOKENS_PER_S = 1_000.0  # a slow prefill; the longest prompt on an engine may keep it silent for that long more
MOST_PATIENCE_S = 600.0
LONGEST_GAP_S = 5.0  # between two looks; more was the router's own absence, and is no silence of the worker's
FEWEST_LOOKS = 4  # that a silence needs

Signs = tuple[object, ...]


def signs_of_life(reading: Reading) -> Signs | None:
    """Figures of which one at least changes with every iteration, also in the midst of a long prefill (KV in use).

    None where the page has no counters: silence says nothing then.
    """
    if reading.generation_tokens_total is None and reading.steps_total is None:
        return None
    return (
        reading.generation_tokens_total,
        reading.prompt_tokens_total,
        reading.steps_total,
        reading.preemptions_total,
        reading.kv_usage,
        reading.running,
        reading.waiting,
    )


class Progress:
    """Watches one worker: `seen` after each reading or failed reading.

    `patience_s` doubles whenever a worker that was given up goes on within as long again: it was only slow.
    """

    __slots__ = ("_given_up_s", "_looked_s", "_signs", "_silent_s", "patience_s")

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._signs: Signs | None = None
        self._silent_s = 0.0
        self._looked_s = math.inf
        self._given_up_s = math.nan

    def seen(self, now_s: float, signs: Signs | None, busy: bool) -> float:
        """For how long nothing has moved, in seconds, while it was `busy`. None for `signs`: nothing can be told."""
        moved = signs != self._signs
        gap_s, self._signs, self._looked_s = now_s - self._looked_s, signs, now_s
        if moved or not busy or signs is None:
            self._silent_s = 0.0
        else:
            self._silent_s += min(gap_s, LONGEST_GAP_S, self.patience_s / FEWEST_LOOKS)
        if moved and not math.isnan(self._given_up_s):
            if now_s - self._given_up_s < self.patience_s:
                self.patience_s = min(2.0 * self.patience_s, max(MOST_PATIENCE_S, self.patience_s))
            self._given_up_s = math.nan
        return self._silent_s

    def hangs(self, silent_s: float, longest_prompt_tokens: int) -> bool:
        """Whether a silence is longer than the longest prompt that is being processed can explain."""
        return silent_s > self.patience_s + longest_prompt_tokens / PREFILL_TOKENS_PER_S

    def given_up(self, now_s: float) -> None:
        """It is held to hang; `waits` until something moves."""
        if not self.waits:
            self._given_up_s = now_s

    @property
    def waits(self) -> bool:
        """Whether it was given up and has not moved since."""
        return not math.isnan(self._given_up_s)
