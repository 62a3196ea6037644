"""Requests as a router sees them: everything known on arrival, never the true output length."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bidroute.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """One request waiting to be routed.

    `predicted_tokens` is whatever point prediction of the output length came with the request (a client hint,
    a model, or in experiments the truth with or without noise); a length predictor decides what to make of it.
    `exact_tokens` > 0 is the output length where the request itself fixes it.
    Times are seconds on the host's clock. SLOs are seconds after arrival; infinity means none.
    """

    id: int
    arrival_s: float
    prompt_tokens: int
    max_tokens: int | None = None
    predicted_tokens: float | None = None
    priority: float = 0.0
    tenant: str = ""
    ttft_slo_s: float = math.inf
    e2e_slo_s: float = math.inf
    exact_tokens: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.arrival_s):
            raise ConfigError(f"request {self.id}: arrival_s={self.arrival_s}; expected a finite time in seconds")
        if self.prompt_tokens < 0:
            raise ConfigError(f"request {self.id}: prompt_tokens={self.prompt_tokens}; expected 0 or more")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"request {self.id}: max_tokens={self.max_tokens}; expected 1 or more, or None")
        if self.exact_tokens < 0:
            raise ConfigError(f"request {self.id}: exact_tokens={self.exact_tokens}; expected 0 (unknown) or more")
        if self.predicted_tokens is not None and not (0 <= self.predicted_tokens < math.inf):
            raise ConfigError(
                f"request {self.id}: predicted_tokens={self.predicted_tokens}; expected 0 or more, or None"
            )
        if not math.isfinite(self.priority):
            raise ConfigError(f"request {self.id}: priority={self.priority}; expected a finite number")
        for field in ("ttft_slo_s", "e2e_slo_s"):
            if not getattr(self, field) > 0:
                raise ConfigError(
                    f"request {self.id}: {field}={getattr(self, field)}; expected a positive time in seconds"
                )
