"""Made-up prompts of a wanted length."""

from __future__ import annotations

import string
from random import Random

VOCABULARY = 1024


class Prompts:
    """Texts of short random words, unlike one another from the first word on, so that no prefix cache helps."""

    def __init__(self, bytes_per_token: float, seed: int) -> None:
        self.bytes_per_token = bytes_per_token
        self._random = Random(seed)
        letters = max(1, round(bytes_per_token) - 1)
        self._words = ["".join(self._random.choices(string.ascii_lowercase, k=letters)) for _ in range(VOCABULARY)]

    def text(self, tokens: int) -> str:
        """A text of `tokens` × `bytes_per_token` bytes, in words of about one token with their space."""
        length = max(1, round(tokens * self.bytes_per_token))
        count = length // (len(self._words[0]) + 1) + 1
        return " ".join(self._random.choices(self._words, k=count))[:length].ljust(length, "x")
