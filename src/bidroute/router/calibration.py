"""How many tokens a prompt has, estimated from its bytes and put right by whatever workers tell of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WORST_TOKENS_PER_BYTE = 1.0  # no tokenizer makes more than one token of a byte
PRIOR_BYTES = 500.0  # as long as nothing is known, that counts as so many bytes of prompts
TOLD_BYTES = 2_000.0  # a worker's count of a sample text counts as so many
TOLD_CAUTION = 1.25  # prompts are not the sample, and a chat's template comes on top
MEMORY_REQUESTS = 200.0
FEW_REQUESTS = 20  # with usage from fewer, workers' counters of prompt tokens have a say
MOVED = 0.1  # by so much of itself a rate must have changed for estimates to be made anew
TYPICAL_TOKENS_PER_BYTE = 0.25  # English; below it a rate goes by usage only, since counters may leave out cache hits
ROUNDING = 1e-6  # tokens
TELLING_BYTES = 200.0  # of prompts behind a counter's growth, for it to say anything


@dataclass(slots=True)
class _Rate:
    """Tokens over bytes of the recent prompts; `applied` is the rate that estimates in the router were made with.

    `squares`: the recent sums of tokens², tokens · bytes and bytes², of prompts that workers counted.
    """

    tokens: float
    size: float
    applied: float
    requests: int = 0
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def per_byte(self) -> float:
        return self.tokens / self.size

    @property
    def error(self) -> float:
        """By what share of itself a prompt is off the best of rates, as a root mean square of the recent ones."""
        of_tokens, of_both, of_bytes = self.squares
        return math.sqrt(max(1.0 - of_both * of_both / (of_tokens * of_bytes), 0.0)) if of_tokens > 0.0 else 0.0


class PromptTokens:
    """Tokens per byte by model: total tokens over total bytes of the recent prompts, the older ones forgotten.

    Cautious until something is known: an underestimated burst would overfill workers, an overestimated one only waits.
    """

    def __init__(self) -> None:
        self._rates: dict[str, _Rate] = {}

    def estimate(self, model: str, prompt_bytes: int) -> int:
        """Tokens of a prompt of so many bytes, at least 1: as many as expected, and their usual error on top.

        One error each is little for one prompt, and enough for a batch of them, whose errors are apart.
        """
        rate = self._rate(model)
        return max(math.ceil(prompt_bytes * rate.per_byte * (1.0 + rate.error) - ROUNDING), 1)

    def observe(self, model: str, prompt_bytes: int, prompt_tokens: int) -> None:
        """A worker counted `prompt_tokens` in a prompt of `prompt_bytes`."""
        if prompt_bytes <= 0 or prompt_tokens <= 0:
            return
        rate, keep = self._rate(model), 1.0 - 1.0 / MEMORY_REQUESTS
        rate.tokens, rate.size = rate.tokens * keep + prompt_tokens, rate.size * keep + prompt_bytes
        of_tokens, of_both, of_bytes = (keep * square for square in rate.squares)
        more = prompt_tokens**2, prompt_tokens * prompt_bytes, prompt_bytes**2
        rate.squares = of_tokens + more[0], of_both + more[1], of_bytes + more[2]
        rate.requests += 1

    def told(self, models: Iterable[str], tokens_per_byte: float) -> None:
        """A worker's tokenizer made so many tokens of a byte of a sample text; usage that is known counts for more."""
        for model in models:
            rate, cautious = self._rate(model), TOLD_CAUTION * tokens_per_byte
            if rate.requests == 0 and (rate.size < TOLD_BYTES or cautious > rate.per_byte):
                rate.tokens, rate.size = cautious * TOLD_BYTES, TOLD_BYTES

    def bound(self, models: Iterable[str], least_per_byte: float, most_per_byte: float) -> None:
        """A worker's own counter of prompt tokens allows rates from … to; only while there is little usage to go by."""
        for model in models:
            rate = self._rate(model)
            if rate.requests < FEW_REQUESTS:
                most = max(most_per_byte, TYPICAL_TOKENS_PER_BYTE)
                rate.tokens = min(max(rate.per_byte, least_per_byte), most) * rate.size

    def moved(self, model: str) -> bool:
        """Whether the rate is another than estimates in the router were made with; they are made anew then."""
        rate = self._rate(model)
        if abs(rate.per_byte - rate.applied) <= MOVED * rate.applied:
            return False
        rate.applied = rate.per_byte
        return True

    def _rate(self, model: str) -> _Rate:
        rate = self._rates.get(model)
        if rate is None:
            rate = self._rates[model] = _Rate(WORST_TOKENS_PER_BYTE * PRIOR_BYTES, PRIOR_BYTES, WORST_TOKENS_PER_BYTE)
        return rate


class PromptFlow:
    """The prompts sent to one worker and those it is known to have processed, held against its own counter.

    Texts count in bytes, prompts that came as token ids in tokens. The counter's growth is the tokens of prompts that
    are between those known to be processed and all that were sent, which bounds the tokens per byte from both sides;
    below, only where nobody else uses the worker.
    """

    __slots__ = ("_before", "_begin", "_done", "_models", "_sent")

    def __init__(self) -> None:
        self._sent = (0, 0)  # bytes of text, and tokens of prompts with ids
        self._done = (0, 0)
        self._before = (0, 0)  # `_done` at the reading before: a page is older than its arrival
        self._begin: tuple[int, tuple[int, int], tuple[int, int]] | None = None
        self._models: set[str] = set()

    def sent(self, model: str, prompt_bytes: int, prompt_tokens: int | None) -> None:
        """A prompt goes to the worker."""
        self._sent = _plus(self._sent, prompt_bytes, prompt_tokens)
        if prompt_tokens is None:
            self._models.add(model)

    def processed(self, prompt_bytes: int, prompt_tokens: int | None) -> None:
        """Its first token came."""
        self._done = _plus(self._done, prompt_bytes, prompt_tokens)

    def counted(self, prompt_tokens_total: int, shared: bool, rates: PromptTokens) -> set[str]:
        """The worker's counter was read; `shared`: others use it too. Bounds the rates of the models returned."""
        done, self._before = self._before, self._done
        if self._begin is None or prompt_tokens_total < self._begin[0]:
            self._begin = prompt_tokens_total, self._sent, done
            self._models.clear()
            return self._models
        total, sent_then, done_then = self._begin
        tokens = prompt_tokens_total - total
        least = _rate_of(tokens, self._sent, done_then) if not shared else None
        most = _rate_of(tokens, done, sent_then)
        rates.bound(self._models, least or 0.0, WORST_TOKENS_PER_BYTE * 2.0 if most is None else most)
        return self._models


def _plus(flow: tuple[int, int], prompt_bytes: int, prompt_tokens: int | None) -> tuple[int, int]:
    if prompt_tokens is None:
        return flow[0] + prompt_bytes, flow[1]
    return flow[0], flow[1] + prompt_tokens


def _rate_of(tokens: int, until: tuple[int, int], since: tuple[int, int]) -> float | None:
    """Tokens per byte where the texts between two marks made all of `tokens` that ids did not."""
    size, known = until[0] - since[0], max(until[1] - since[1], 0)
    return max(tokens - known, 0) / size if size >= TELLING_BYTES else None
