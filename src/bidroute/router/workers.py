"""One upstream worker, as the proxy and the dispatcher know it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Worker:
    """A vLLM or SGLang server.

    `url` has no trailing slash; `headers` go out with every request to it (its API key); `models` are those it serves
    (None: not known yet, taken to serve all). `device` is its index in the fleet.
    """

    name: str
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    models: frozenset[str] | None = None
    device: int = -1

    def serves(self, model: str) -> bool:
        """Whether requests for this model may go here."""
        return self.models is None or not model or model in self.models
