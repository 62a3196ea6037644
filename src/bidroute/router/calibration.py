"""How many tokens a prompt has, estimated from its bytes and put right by what workers then report."""

from __future__ import annotations

FIRST_BYTES_PER_TOKEN = 4.0  # English text with common tokenizers
MEMORY_REQUESTS = 200.0
PRIOR_BYTES = 2_000.0  # the first guess counts as so many bytes of prompts


class PromptTokens:
    """Tokens per byte by model: total tokens over total bytes of the recent prompts, the older ones forgotten."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def estimate(self, model: str, prompt_bytes: int) -> int:
        """Expected tokens of a prompt of so many bytes; at least 1."""
        tokens, size = self._seen.get(model, (PRIOR_BYTES / FIRST_BYTES_PER_TOKEN, PRIOR_BYTES))
        return max(round(prompt_bytes * tokens / size), 1)

    def observe(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """A worker counted `prompt_tokens` in a prompt of `prompt_bytes`."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        keep = 1.0 - 1.0 / MEMORY_REQUESTS
        tokens, size = self._seen.get(model, (PRIOR_BYTES / FIRST_BYTES_PER_TOKEN, PRIOR_BYTES))
        self._seen[model] = tokens * keep + prompt_tokens, size * keep + prompt_bytes
