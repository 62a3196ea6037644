"""What the HTTP side of the router needs to know: where to listen, whom to trust, and how long to wait."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from bidroute.errors import ConfigError

# Hints that clients may send; only those named in `HttpSettings.trusted_hints` are believed.
TTFT_SLO = "x-llm-d-slo-ttft-ms"
TPOT_SLO = "x-llm-d-slo-tpot-ms"
FAIRNESS_ID = "x-llm-d-inference-fairness-id"
DEADLINE = "x-request-deadline-ms"
PRIORITY = "priority"  # a field of the body, as in vLLM: lower is more urgent
HINTS = (TTFT_SLO, TPOT_SLO, FAIRNESS_ID, DEADLINE, PRIORITY)

_TIMEOUTS = ("body_timeout_s", "connect_timeout_s", "first_byte_timeout_s", "stall_timeout_s", "answer_timeout_s")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the HTTP side. Times are in seconds, sizes in bytes.

    `stall_timeout_s` is the longest silence of a worker in the middle of an answer, `first_byte_timeout_s` the longest
    before a stream's first byte (a long prefill is not death), `answer_timeout_s` the longest wait for an answer
    that is not streamed (it comes whole, at its end). A client has `body_timeout_s` to send its body. `drain_s` is how
    long SIGTERM waits for running requests.
    `allow_open` permits listening beyond loopback without API keys.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    allow_open: bool = False
    trusted_hints: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 2**20
    max_header_bytes: int = 16 * 2**10
    max_headers: int = 100
    body_timeout_s: float = 60.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 600.0
    stall_timeout_s: float = 60.0
    answer_timeout_s: float = 1800.0
    drain_s: float = 30.0
    max_attempts: int = 3
    tls_certificate: str | None = None
    tls_key: str | None = None
    worker_ca: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be 0 to 65535, got {self.port}")
        for name in ("max_body_bytes", "max_header_bytes", "max_headers", "max_attempts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in _TIMEOUTS:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be a positive number of seconds, got {getattr(self, name)}")
        if not 0 <= self.drain_s < math.inf:
            raise ConfigError(f"drain_s must be 0 or more seconds, got {self.drain_s}")
        self._check_access()

    def _check_access(self) -> None:
        for hint in self.trusted_hints:
            if hint not in HINTS:
                raise ConfigError(f"unknown hint {hint!r} in trusted_hints; choose from {', '.join(HINTS)}")
        if any(not key.strip() for key in self.api_keys):
            raise ConfigError("api_keys holds an empty key; give every key at least one character, or no keys at all")
        if self.host not in _LOOPBACK and not self.api_keys and not self.allow_open:
            raise ConfigError(
                f"host {self.host!r} can be reached from other machines and there are no api_keys; "
                "give api_keys, or allow_open: true where something else guards the port"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key go together; give both files or neither")
        for name in ("tls_certificate", "tls_key", "worker_ca"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"{name}: no file {path!r}")
