"""A continuous-batching engine, one iteration at a time: the aggregated engine of the simulator in plain Python.

The simulator's kernels jump over iterations and know every arrival in advance; a live worker must stream each token
and may lose a request at any moment. A test holds the two together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bidroute.simulator.latency import DecodeLatency, PrefillLatency


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the engine, of `prompt` and `output` tokens (its true length).

    `computed` prompt tokens are processed (or were fetched, before it came), `generated` tokens produced; `blocks` of
    KV are held, and with `keeps_kv` also after its end. `wake` is called after each iteration that gave it a token;
    `told_s` is for who keeps the time: when it came, then its last token.
    """

    prompt: int
    output: int
    wake: Callable[[], None] | None = None
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0
    told_s: float = 0.0
    keeps_kv: bool = False

    @property
    def context(self) -> int:
        """Tokens so far."""
        return self.prompt + self.generated

    @property
    def done(self) -> bool:
        """Whether it has all its tokens."""
        return self.generated >= self.output


@dataclass(slots=True)
class Counters:
    """What the engine did since it was made."""

    passes: int = 0
    pass_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0


class Engine:
    """Greedy admission in order of arrival, chunked prefill, last-in preemption with recompute.

    Call `begin`, let the time pass that it returns, call `complete`, and so on. Requests may be added and cancelled
    at any time between calls. `decoding` and `prefilling` are in order of admission; only the last of `prefilling`
    can be cut by the token budget.
    """

    def __init__(
        self,
        batch_slots: int,
        kv_blocks: int,
        block_size: int,
        max_batched_tokens: int,
        latency: DecodeLatency,
        prefill: PrefillLatency,
    ) -> None:
        self.batch_slots = batch_slots
        self.kv_blocks = kv_blocks
        self.block_size = block_size
        self.max_batched_tokens = max_batched_tokens
        self.latency = latency
        self.prefill = prefill
        self.free = kv_blocks
        self.waiting: deque[Sequence] = deque()
        self.decoding: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.counters = Counters()
        self._budget = 0
        self._chunks: list[tuple[Sequence, int]] = []  # who prefills in this pass, and from which prompt token on

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self.decoding) + len(self.prefilling)

    @property
    def kv_usage(self) -> float:
        """The share of KV blocks in use."""
        return 1.0 - self.free / self.kv_blocks

    def add(self, sequence: Sequence) -> None:
        """A request enters the engine's own queue. It must fit the empty engine."""
        self.waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Drop a request wherever it is, its KV with it; one that has ended is left alone."""
        for place in (self.waiting, self.decoding, self.prefilling):
            if sequence in place:
                place.remove(sequence)
                self._release(sequence)
                return

    def drop_kv(self, sequence: Sequence) -> None:
        """Free what an ended request has kept."""
        self._release(sequence)

    def begin(self) -> float | None:
        """Start an iteration and return how long it takes, in seconds; None when there is nothing to do."""
        evictions = self.counters.preemptions
        self._chunks = []
        self._grow()
        self._budget = self.max_batched_tokens - len(self.decoding)
        if self.prefilling:
            self._plan_prefill(self.prefilling[-1])
        if self.counters.preemptions == evictions:  # what was just thrown out is not taken back in the same pass
            self._admit()
        return self._duration_s() if self.running else None

    def complete(self) -> list[Sequence]:
        """End the iteration; returns the requests that got a token. Those that are done have left the engine."""
        chunks = [(sequence, prefix) for sequence, prefix in self._chunks if sequence in self.prefilling]
        prefilled = [sequence for sequence in self.prefilling if sequence.computed == sequence.prompt]
        self.prefilling = [sequence for sequence in self.prefilling if sequence.computed < sequence.prompt]
        produced = self.decoding + prefilled
        self.counters.passes += 1
        prompt_tokens = sum(sequence.computed - prefix for sequence, prefix in chunks)
        self.counters.pass_tokens += len(self.decoding) + prompt_tokens
        self.counters.prompt_tokens += prompt_tokens
        self.counters.generation_tokens += len(produced)
        for sequence in produced:
            sequence.generated += 1
        self.decoding = [sequence for sequence in produced if sequence.generated < sequence.output]
        if len(self.decoding) < len(produced):
            for sequence in produced:
                if sequence.done and not sequence.keeps_kv:
                    self._release(sequence)
        return produced

    def _grow(self) -> None:
        """Give every decoding request the block its next token needs; where blocks run out, throw out the last in."""
        row = 0
        while row < len(self.decoding):
            sequence = self.decoding[row]
            if (sequence.context - 1) % self.block_size == 0:
                while self.free == 0 and row < len(self.decoding):
                    self._evict_last()
                if row < len(self.decoding):
                    self.free -= 1
                    sequence.blocks += 1
            row += 1

    def _evict_last(self) -> None:
        sequence = self.prefilling.pop() if self.prefilling else self.decoding.pop()
        self._release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = 0

    def _admit(self) -> None:
        while self.waiting and self._budget > 0 and self.running < self.batch_slots:
            sequence = self.waiting[0]
            blocks = -(-sequence.context // self.block_size)
            if blocks > self.free:
                return
            self.waiting.popleft()
            self.free -= blocks
            sequence.blocks = blocks
            self.prefilling.append(sequence)
            self._plan_prefill(sequence)

    def _plan_prefill(self, sequence: Sequence) -> None:
        """Give a request its next chunk of prompt from the budget of this pass."""
        prefix = sequence.computed
        sequence.computed = min(sequence.prompt, prefix + self._budget)
        self._budget -= max(sequence.computed - prefix, 1)
        self._chunks.append((sequence, prefix))

    def _duration_s(self) -> float:
        """As the simulator has it: a mean chunk per prefilling request, and a decode step where anybody decodes."""
        duration_s = 0.0
        if self._chunks:
            count = len(self._chunks)
            computed = sum(sequence.computed for sequence, _ in self._chunks)
            prefix = sum(prefix for _, prefix in self._chunks)
            duration_s += self.prefill.seconds(count * (computed // count - prefix // count))
        resumed = [one for one, _ in self._chunks if one.generated > 0 and one.computed == one.prompt]
        decoding = len(self.decoding) + len(resumed)
        if decoding:
            kv_tokens = sum(one.prompt + one.generated for one in self.decoding) + sum(one.context for one in resumed)
            duration_s += self.latency.seconds(decoding, kv_tokens)
        return duration_s
