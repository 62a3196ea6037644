"""A plain-Python twin of one engine: one pass at a time, no shortcuts. The oracle of the kernels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Job:
    id: int
    ready_ns: int
    prompt: int
    output: int
    generated: int = 0
    computed: int = 0
    blocks: int = 0
    start_ns: int = -1
    first_ns: int = -1
    end_ns: int = -1
    preemptions: int = 0
    decoding: bool = False


@dataclass
class Twin:
    """`decode_ns(batch, kv_tokens)` and `prefill_ns(new_tokens)` give the times of a pass."""

    mode: str
    slots: int
    blocks: int
    block_size: int
    budget: int
    reserve: bool
    decode_ns: Callable[[int, int], int]
    prefill_ns: Callable[[int], int]
    recompute_ns: Callable[[int], int]
    running: list[Job] = field(default_factory=list)
    wasted: int = 0

    @property
    def ahead(self) -> int:
        return 1 if self.mode == "decode" else 0

    @property
    def free(self) -> int:
        return self.blocks - sum(job.blocks for job in self.running)

    def to_blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def run(self, jobs: list[Job]) -> None:
        """Run the jobs, sorted by `ready_ns`, to their end."""
        coming, queue, now = deque(jobs), deque[Job](), 0
        while coming or queue or self.running:
            if not queue and not self.running:
                now = max(now, coming[0].ready_ns)
            while coming and coming[0].ready_ns <= now:
                queue.append(coming.popleft())
            now = self.one_pass(queue, now)

    def one_pass(self, queue: deque[Job], now: int) -> int:
        """One pass from its start to its end; returns the end."""
        preempted = self.grow(queue)
        budget = self.budget - sum(job.decoding for job in self.running)
        chunks: list[tuple[int, int]] = []  # (computed after, before)
        decoders = [job for job in self.running if job.decoding]
        extra = 0
        for job in self.running:
            if not job.decoding:
                budget -= self.chunk(job, budget, chunks, decoders)
        while queue and not preempted and budget > 0 and len(self.running) < self.slots and self.fits(queue[0]):
            job = queue.popleft()
            job.start_ns = now if job.start_ns < 0 else job.start_ns
            job.blocks = self.to_blocks(job.prompt + job.generated + self.ahead)
            self.running.append(job)
            if self.mode == "decode":
                job.decoding = True
                decoders.append(job)
                extra += self.recompute_ns(job.prompt + job.generated) if job.preemptions else 0
            else:
                budget -= self.chunk(job, budget, chunks, decoders)
        assert self.free >= 0
        end = now + extra
        if chunks:
            after, before = (sum(column) // len(chunks) for column in zip(*chunks, strict=True))
            end += self.prefill_ns(len(chunks) * (after - before))
        if decoders:
            end += self.decode_ns(len(decoders), sum(job.prompt + job.generated for job in decoders))
        for job in self.running:
            if job.decoding or job.computed == job.prompt:
                job.decoding = True
                job.generated += 1
                job.first_ns = end if job.first_ns < 0 else job.first_ns
                if job.generated == job.output:
                    job.end_ns = end
        self.running = [job for job in self.running if job.end_ns < 0]
        return end

    def chunk(self, job: Job, budget: int, chunks: list[tuple[int, int]], decoders: list[Job]) -> int:
        """The next prefill chunk; a recomputing job also decodes in the pass that ends its prefill."""
        before = job.computed
        job.computed = min(job.prompt, before + budget)
        chunks.append((job.computed, before))
        if job.generated and job.computed == job.prompt:
            decoders.append(job)
        return max(1, job.computed - before)

    def fits(self, job: Job) -> bool:
        if self.reserve:
            needs = [self.to_blocks(other.prompt + other.output) for other in [*self.running, job]]
            return sum(needs) <= self.blocks
        return self.to_blocks(job.prompt + job.generated + self.ahead) <= self.free

    def grow(self, queue: deque[Job]) -> bool:
        """Every decoding job gets the block of its next token; True if somebody was thrown out for it."""
        preempted = False
        row = 0
        while row < len(self.running):
            job = self.running[row]
            needed = self.to_blocks(job.prompt + job.generated + self.ahead) if job.decoding else job.blocks
            while needed > job.blocks and self.free == 0 and row < len(self.running):
                self.evict(self.running[-1], queue)
                preempted = True
            if row < len(self.running):
                job.blocks = max(job.blocks, needed)
            row += 1
        return preempted

    def evict(self, job: Job, queue: deque[Job]) -> None:
        self.running.remove(job)
        self.wasted += job.prompt + job.generated if job.decoding else job.computed
        job.blocks, job.computed, job.decoding = 0, 0, False
        job.preemptions += 1
        queue.appendleft(job)
