"""vLLM's own scheduler with a least time for each step, so that a tiny model keeps the pace of a real one.

`PACE_MS` has four numbers, in milliseconds: of a step, and on top of it for each sequence that decodes, each prompt
token processed and each token of KV read. Batching, blocks, preemption and metrics remain vLLM's.
"""

import os
import time
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

STEP_S, SEQUENCE_S, PROMPT_TOKEN_S, KV_TOKEN_S = (float(text) / 1000.0 for text in os.environ["PACE_MS"].split(","))


class PacedScheduler(Scheduler):
    """A step ends no earlier than its work would take."""

    _until_s = 0.0

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        """What the next step runs, and when it may end."""
        began_s = time.monotonic()
        output = super().schedule(*arguments, **options)
        self._until_s = began_s + self._work_s(output.num_scheduled_tokens)
        return output

    def update_from_output(self, *arguments: Any, **options: Any) -> Any:
        """The step's results, at its end."""
        time.sleep(max(self._until_s - time.monotonic(), 0.0))
        return super().update_from_output(*arguments, **options)

    def _work_s(self, scheduled_tokens: dict[str, int]) -> float:
        if not scheduled_tokens:
            return 0.0
        counts = scheduled_tokens.values()
        decoding = sum(count == 1 for count in counts)
        kv_tokens = sum(self.requests[name].num_computed_tokens for name in scheduled_tokens if name in self.requests)
        prompt_s = PROMPT_TOKEN_S * (sum(counts) - decoding)
        return STEP_S + SEQUENCE_S * decoding + prompt_s + KV_TOKEN_S * kv_tokens
