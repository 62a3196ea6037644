"""What may be changed while the router runs: the contract of admin API, watched file and dispatcher."""

from __future__ import annotations

from typing import Any, Protocol

from bidroute.errors import BidrouteError, ConfigError
from bidroute.router.settings import host_name
from bidroute.router.state import RequestExplanation, RouterState


class NoSuchError(BidrouteError):
    """There is no worker, or no request, of this name."""


class FleetAdmin(Protocol):
    """A running router, as an operator changes it.

    All methods are called on the router's event loop, by the admin API and by the watched file. Bad values raise
    ConfigError, unknown names NoSuchError, each with one line for the operator; nothing is changed then.
    """

    async def add_worker(self, settings: dict[str, Any]) -> str:
        """Add a worker from its settings, as they stand in a configuration file (`url`, and what else there is).

        Returns its name. A name in use by a worker that takes requests is an error; one that is draining or leaving
        gives its name to the new one, and ends its own requests as before.
        """

    async def drain_worker(self, name: str) -> None:
        """Send nothing new to a worker; what runs there runs on. Twice is once."""

    async def remove_worker(self, name: str, *, now: bool = False) -> None:
        """Drain a worker and forget it after its last request; `now`: at once, closing its leases."""

    async def resize_worker(self, name: str, batch_slots: int | None, kv_tokens: int | None) -> None:
        """Set what a worker is believed to hold; None leaves that one as it is."""

    async def set_objective(self, text: str) -> None:
        """A preset's name, term=weight pairs, or both (`bidroute.core.objective.parse_objective`)."""

    async def set_policy(self, name: str) -> None:
        """Go on under another registered policy; the queue and the leases stay."""

    def state(self) -> RouterState:
        """The router at this moment."""

    def explain(self, request_id: str) -> RequestExplanation:
        """Why a request is where it is. Raises NoSuchError for one that is unknown or long gone."""


def worker_name(settings: dict[str, Any]) -> str:
    """The name of the worker that settings describe: their `name`, else host and port of their `url`.

    Raises ConfigError when there is neither.
    """
    name, url = settings.get("name"), settings.get("url")
    if name is not None and not (isinstance(name, str) and name):
        raise ConfigError(f"worker name {name!r}; expected a text")
    if not isinstance(url, str) or not host_name(url):
        raise ConfigError(f"worker url {url!r}; expected one such as http://host:8000")
    return name or host_name(url)
