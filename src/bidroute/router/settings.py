"""What the router is told: workers, policy, limits. From a YAML file, the command line, or both.

workers:
  - http://10.0.0.2:8000        # a URL alone, or settings
  - url: http://10.0.0.1:8000
    name: h100-a              # any name (from the URL)
    batch_slots: 256          # the engine's max_num_seqs (learned where the engine tells)
    kv_tokens: 432992         # (learned)
    block_size: 16            # (learned)
    token_budget: 2048        # the engine's max_num_batched_tokens, if it prefills and is to be priced (not used)
    api_key: secret           # sent to this worker as a bearer token
    drain: true               # send it nothing new
prefill:                      # workers that process prompts for those above (none: each does its own)
  - http://10.0.0.3:8000
policy: bid_price             # any name of `bidroute compare`
objective: balanced           # a preset, or term=weight pairs
lengths: hint                 # hint | prompt | none
http: {port: 8000}            # see http_settings.py
admin_port: 8001              # page, admin API and metrics; on the router's host
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from bidroute.errors import ConfigError
from bidroute.router.http_settings import HttpSettings
from bidroute.router.workers import PREFILL
from bidroute.yaml_files import read_yaml

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker; None means learned from it, or the stated default where it does not tell. `token_budget` is never
    learned: without one, prompts are not held for room in an iteration.

    `role` is "prefill" for one that only processes prompts; for the others, "both" and "decode" are the same.
    """

    url: str
    name: str = ""
    batch_slots: Count | None = None
    kv_tokens: Count | None = None
    block_size: Count | None = None
    token_budget: Count | None = None
    api_key: str | None = None
    drain: bool = False
    role: Literal["both", "decode", "prefill"] = "both"


class RouterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the router is told.

    Where there are `prefill` workers, prompts are processed there, and what they keep of a prompt must be fetched
    within `kv_lease_s`.
    `max_waiting` requests may wait, each for `max_wait_s` at most. Prices are updated every `update_s` while somebody
    waits (infinite: never), in a thread unless `updates_off_loop` is false; both help to measure what updates cost.
    `admin_port` opens page, admin API and metrics there, to this machine or, where there is one, to who has the
    `admin_token`. An engine whose counters and streams stand still for `hang_timeout_s` while it has requests is taken
    to hang; the prefill of its longest prompt has time of its own. Traces go to the `otlp_endpoint` over HTTP, where
    there is one.
    """

    workers: list[WorkerSettings] = []
    prefill: list[WorkerSettings] = []
    policy: str = "bid_price"
    objective: str = "balanced"
    lengths: str = "hint"
    seed: int = 0
    max_waiting: Count = 20_000
    max_wait_s: Seconds = 600.0
    scrape_s: Seconds = 1.0
    kv_lease_s: Seconds = 30.0
    hang_timeout_s: Seconds = 30.0
    update_s: Seconds = 0.25
    updates_off_loop: bool = True
    http: HttpSettings = HttpSettings()
    admin_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    admin_token: str | None = None
    otlp_endpoint: str | None = None


def read_settings(path: Path) -> RouterSettings:
    """The settings in a YAML file. Raises ConfigError naming the file and the field."""
    document = read_yaml(path, "configuration", "`workers:` and a list under it") or {}
    for name in ("workers", "prefill"):
        if isinstance(document, dict) and isinstance(document.get(name), list):
            document = document | {name: [worker_row(row) for row in document[name]]}
    try:
        settings = msgspec.convert(document, RouterSettings)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{path}: {problem}".replace("`", "").replace("$.", "")) from None
    return checked(settings)


def worker_row(row: Any) -> Any:
    """An entry of a list of workers, with settings in place of a URL alone."""
    return {"url": row} if isinstance(row, str) else row


def host_name(url: str) -> str:
    """What a worker without a name is called: host and port of its URL; credentials in that are no part of it."""
    return urlsplit(url).netloc.rpartition("@")[2]


def checked(settings: RouterSettings) -> RouterSettings:
    """The settings with every worker's URL normalised and named, and those under `prefill` with their role.

    Raises ConfigError for a bad or a doubled one.
    """
    prefill = [msgspec.structs.replace(worker, role=PREFILL) for worker in settings.prefill]
    workers = [_named(worker) for worker in [*settings.workers, *prefill]]
    for index, worker in enumerate(workers):
        for other in workers[:index]:
            if other.name == worker.name:
                raise ConfigError(f"workers: two are called {worker.name!r}; give each its own name")
            if other.url == worker.url:
                raise ConfigError(f"workers: {worker.url} is given twice; give it once")
    endpoint = settings.otlp_endpoint
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"otlp_endpoint {endpoint!r}; expected a URL such as http://127.0.0.1:4318/v1/traces")
    prefill = [worker for worker in workers if worker.role == PREFILL]
    return msgspec.structs.replace(
        settings, workers=[worker for worker in workers if worker.role != PREFILL], prefill=prefill
    )


def _named(worker: WorkerSettings) -> WorkerSettings:
    parts = urlsplit(worker.url)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise ConfigError(f"worker {worker.url!r}: expected a URL such as http://10.0.0.1:8000")
    url = worker.url.rstrip("/").removesuffix("/v1")
    return msgspec.structs.replace(worker, url=url, name=worker.name or host_name(worker.url))
