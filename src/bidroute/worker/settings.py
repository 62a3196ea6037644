"""What a stand-in worker is told: the engine it runs, and how it answers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bidroute.errors import ConfigError

DEFAULT_LATENCY = "affine:0.015,0.0003,0.000001"
DEFAULT_PREFILL = "affine:0,0.00002"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker; raises ConfigError for what no engine could run.

    `latency` and `prefill` are latency models as text. `time_scale` runs the engine so many times faster than real.
    A prompt of text counts one token per `bytes_per_token` bytes. Without `ignore_eos`, output lengths are drawn with
    the mean `output_tokens` from `seed`. `max_model_len` is all of the KV cache where it is None; `max_queued` limits
    the engine's own queue (None: no limit). KV that another worker is to fetch is kept for `kv_lease_s`.
    """

    model: str = "bidroute-worker"
    batch_slots: int = 64
    kv_tokens: int = 50_000
    block_size: int = 16
    max_batched_tokens: int = 2048
    max_model_len: int | None = None
    latency: str = DEFAULT_LATENCY
    prefill: str = DEFAULT_PREFILL
    time_scale: float = 1.0
    bytes_per_token: float = 4.0
    output_tokens: float = 200.0
    seed: int = 0
    max_queued: int | None = None
    allow_faults: bool = False
    kv_lease_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("batch_slots", "kv_tokens", "block_size", "max_batched_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{_option(name)} {getattr(self, name)}; expected 1 or more")
        for name in ("time_scale", "bytes_per_token", "output_tokens", "kv_lease_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{_option(name)} {value}; expected a positive number")
        if self.max_batched_tokens < self.batch_slots:
            raise ConfigError(
                f"--max-batched-tokens {self.max_batched_tokens}; expected --batch-slots ({self.batch_slots}) or more: "
                "every running request has a token in each iteration"
            )
        if self.max_queued is not None and self.max_queued < 0:
            raise ConfigError(f"{_option('max_queued')} {self.max_queued}; expected 0 or more")
        if self.kv_blocks < 1:
            raise ConfigError(f"--kv-tokens {self.kv_tokens}; expected at least one block of {self.block_size} tokens")
        if not 2 <= self.model_length <= self.kv_blocks * self.block_size:
            raise ConfigError(
                f"--max-model-len {self.model_length}; expected 2 to {self.kv_blocks * self.block_size} tokens: "
                "one request of that length must fit the KV cache"
            )

    @property
    def kv_blocks(self) -> int:
        """KV blocks that requests can use."""
        return self.kv_tokens // self.block_size

    @property
    def model_length(self) -> int:
        """The most tokens, prompt and output, that one request may have."""
        return self.kv_blocks * self.block_size if self.max_model_len is None else self.max_model_len


def _option(name: str) -> str:
    names = {"max_queued": "--max-num-queued-reqs", "kv_lease_s": "--kv-lease"}
    return names.get(name, "--" + name.replace("_", "-"))
