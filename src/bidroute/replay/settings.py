"""What to replay, against which endpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bidroute.core.figures import Slo
from bidroute.errors import ConfigError
from bidroute.traces import Workload, load_trace

DEFAULT_REQUESTS = 300


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """`speedup` and `rate_per_s` (mean arrivals per second) exclude each other; None and None: as the trace has it.

    `timeout_s` counts from the scheduled arrival. `scrape` are addresses of workers whose `/metrics` tell preemptions
    and queues. `model` empty: the first that the endpoint lists. `label` names the run in tables.
    """

    target: str
    model: str = ""
    label: str = "replay"
    trace: str = "builtin:azure-conv-like"
    requests: int | None = None
    skip_bad_rows: bool = False
    speedup: float | None = None
    rate_per_s: float | None = None
    timeout_s: float = 600.0
    bytes_per_token: float = 4.0
    chat: bool = False
    api_key: str = ""
    scrape: tuple[str, ...] = ()
    slo: Slo = field(default_factory=Slo)

    def __post_init__(self) -> None:
        for url in (self.target, *self.scrape):
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"address {url!r}; expected http://HOST:PORT")
        if self.speedup is not None and self.rate_per_s is not None:
            raise ConfigError("--speedup and --rate were both given; give one")
        for name, value in (
            ("--speedup", self.speedup),
            ("--rate", self.rate_per_s),
            ("--timeout", self.timeout_s),
            ("--bytes-per-token", self.bytes_per_token),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} {value}; expected a positive number")

    @property
    def base(self) -> str:
        """The target's address without a trailing slash or /v1."""
        return self.target.rstrip("/").removesuffix("/v1")


def workload_of(settings: ReplaySettings, seed: int) -> tuple[Workload, float]:
    """The requests to send, and how much faster than in the trace. Raises TraceError or ConfigError."""
    builtin = settings.trace.startswith("builtin:")
    count = DEFAULT_REQUESTS if settings.requests is None and builtin else settings.requests
    workload = load_trace(settings.trace, requests=count, skip_bad_rows=settings.skip_bad_rows, seed=seed)
    speedup = settings.speedup or 1.0
    if settings.rate_per_s is not None:
        span_s = float(workload.arrival_s[-1])
        speedup = settings.rate_per_s * span_s / max(len(workload) - 1, 1) if span_s > 0 else 1.0
    return workload.sped_up(speedup), speedup
