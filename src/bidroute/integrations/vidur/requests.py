"""Requests of Vidur's that can be preempted, may come with their prompt in the KV cache, and remember their fate."""

from __future__ import annotations

import math
from collections.abc import Callable

from vidur.entities import Request


class RoutedRequest(Request):
    """A request with our `id` (its place by arrival), its true lengths, and the device it was sent to (−1: nowhere).

    Vidur turns tokens already made into prompt when it preempts, so the true lengths are kept apart. `decode_only`:
    its prompt is processed elsewhere, and its first token comes from its first iteration here.
    """

    def __init__(self, request_id: int, arrived_at: float, prompt_tokens: int, output_tokens: int, decode_only: bool):
        super().__init__(arrived_at, prompt_tokens, output_tokens)
        self._id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.device = -1
        self.first_token_at = math.nan
        self.on_restart: Callable[[RoutedRequest], object] | None = None
        if decode_only:
            self._num_processed_tokens = self._num_stage_processed_tokens = prompt_tokens
            self._is_prefill_complete = self._is_prefill_stage_complete = True

    def on_batch_end(self, time: float, num_tokens_processed: int) -> None:
        """As Vidur does; the first token is noted, where Vidur's own metrics look for it too."""
        super().on_batch_end(time, num_tokens_processed)
        if math.isnan(self.first_token_at) and self.num_processed_tokens > self.prompt_tokens:
            self.first_token_at = self._prefill_completed_at = time

    def restart(self) -> None:
        """Preempted: as Vidur does, with two mends.

        Its count of the first pipeline stage starts anew (else it asserts), and a prompt that was processed in part
        stays a prompt (Vidur would decode the rest of it token by token).
        """
        size, in_part = self.size, not self._is_prefill_complete
        super().restart()
        if in_part:
            self._num_prefill_tokens, self._num_decode_tokens = size
        self._num_stage_processed_tokens = 0
        self._is_prefill_stage_complete = False
        if self.on_restart is not None:
            self.on_restart(self)
