"""`bidroute serve`: the live router."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from bidroute.cli.extras import require_serve
from bidroute.errors import ConfigError

if TYPE_CHECKING:
    from bidroute.router.settings import RouterSettings, WorkerSettings

_WORKERS, _HTTP, _ROUTING = "Workers", "HTTP", "Routing"
_KEYS_VARIABLE = "BIDROUTE_API_KEYS"
_TOKEN_VARIABLE = "BIDROUTE_ADMIN_TOKEN"
_WORKER_FIELDS = {
    "slots": "batch_slots",
    "kv_tokens": "kv_tokens",
    "block_size": "block_size",
    "token_budget": "token_budget",
    "name": "name",
}


def serve_command(
    worker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[,k=v,…]",
            show_default=False,
            rich_help_panel=_WORKERS,
            help="A vLLM or SGLang server; give one for each. What it does not tell about itself can be added: "
            "slots=N (its max_num_seqs), kv_tokens=N, block_size=N, token_budget=N (its max_num_batched_tokens), "
            "name=NAME, api_key_env=VARIABLE.",
        ),
    ] = None,
    prefill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[,k=v,…]",
            show_default=False,
            rich_help_panel=_WORKERS,
            help="A vLLM server that only processes prompts (a KV producer); give one for each, with what can be added "
            "as for --worker. The workers then fetch the KV from it (as KV consumers) and only decode.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            show_default=False,
            rich_help_panel=_WORKERS,
            help="All settings in one file: workers, policy, http, …. Options on the command line win over it; "
            "--worker replaces its list of workers, --prefill that of prefill workers.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel=_HTTP,
            help="Where to listen (127.0.0.1). Beyond loopback, keys are demanded: put them, separated by commas, into "
            f"the environment variable {_KEYS_VARIABLE}.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, show_default=False, rich_help_panel=_HTTP, help="The port (8000)."),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=65535,
            show_default=False,
            rich_help_panel=_HTTP,
            help="Open the live page, the admin API and metrics on this port. It answers this machine only, or whoever "
            f"has the token in the environment variable {_TOKEN_VARIABLE}.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HINT",
            show_default=False,
            rich_help_panel=_HTTP,
            help="Believe this hint of clients; give one for each: x-llm-d-slo-ttft-ms, x-llm-d-slo-tpot-ms, "
            "x-llm-d-inference-fairness-id, x-request-deadline-ms, priority (in the body). None are by default.",
        ),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            rich_help_panel=_HTTP,
            help="debug, info (a JSON line for each request), warning or error. Prompts and keys are never logged.",
        ),
    ] = "info",
    traces: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default=False,
            rich_help_panel=_HTTP,
            help="Send OpenTelemetry traces to this OTLP endpoint, such as http://127.0.0.1:4318/v1/traces; needs the "
            "extra bidroute[otel]. None are sent otherwise.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=False, rich_help_panel=_ROUTING, help="The policy, as in compare (bid_price)."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET|k=v,…",
            show_default=False,
            rich_help_panel=_ROUTING,
            help="What it aims for, as in compare (balanced): ttft, latency, throughput, tail, goodput, or weights.",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            show_default=False,
            rich_help_panel=_ROUTING,
            help="What output lengths are predicted from: hint (max_tokens), prompt (its length), none (only what "
            "finished requests teach).",
        ),
    ] = None,
) -> None:
    """Serve the OpenAI API in front of vLLM and SGLang servers, and send each request where and when it is worth most.

    Requests wait in the router until a worker can start them at once; engines never queue. Nothing is to be trained
    or profiled. Clients need only another base URL; SIGTERM lets running requests end first.

    Examples:

      bidroute serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000,slots=64

      bidroute serve --prefill http://10.0.0.3:8000 --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000

      bidroute serve --config fleet.yaml --port 9000 --objective tail

      curl http://127.0.0.1:8000/v1/completions -d '{"model": "m", "prompt": "Hello", "stream": true}'
    """
    require_serve("bidroute serve")
    from bidroute.router.run import run

    http = {"host": host, "port": port, "trusted_hints": trust, "api_keys": _keys()}
    routing = {"policy": policy, "objective": objective, "lengths": lengths, "admin_port": admin_port}
    routing["otlp_endpoint"] = traces
    routing["admin_token"] = os.environ.get(_TOKEN_VARIABLE) or None
    settings = merged(config, worker or [], routing, http, prefill or [])
    run(settings, log_level, None if worker or prefill else config)


def merged(
    config: Path | None,
    workers: list[str],
    routing: dict[str, Any],
    http: dict[str, Any],
    prefill: Sequence[str] = (),
) -> RouterSettings:
    """The file's settings, with what was given on the command line in their place. Raises ConfigError."""
    from bidroute.router.settings import RouterSettings, checked, read_settings

    settings = RouterSettings() if config is None else read_settings(config)
    changes = {name: value for name, value in routing.items() if value is not None}
    if workers:
        changes["workers"] = [parsed_worker(text) for text in workers]
    if prefill:
        changes["prefill"] = [parsed_worker(text, "--prefill") for text in prefill]
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in http.items()}
    given = {name: value for name, value in given.items() if value is not None and value != ()}
    changes["http"] = msgspec.structs.replace(settings.http, **given)
    settings = checked(msgspec.structs.replace(settings, **changes))
    if not settings.workers:
        raise ConfigError("no workers; give --worker URL for each, or a --config file that lists them")
    return settings


def parsed_worker(text: str, option: str = "--worker") -> WorkerSettings:
    """A worker from `URL,k=v,…`. Raises ConfigError naming the option."""
    from bidroute.router.settings import WorkerSettings

    url, *pairs = text.split(",")
    fields: dict[str, Any] = {"url": url}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if name == "api_key_env" and equals:
            fields["api_key"] = os.environ.get(value)
            if not fields["api_key"]:
                raise ConfigError(f"{option} {url}: the environment variable {value!r} is not set; put the key there")
        elif name in _WORKER_FIELDS and value:
            fields[_WORKER_FIELDS[name]] = value
        else:
            known = ", ".join([*_WORKER_FIELDS, "api_key_env"])
            raise ConfigError(f"{option} {url}: {pair!r} is not one of {known} with =VALUE")
    try:
        return msgspec.convert(fields, WorkerSettings, strict=False)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{option} {url}: {str(problem).replace('`', '').replace('$.', '')}") from None


def _keys() -> tuple[str, ...]:
    return tuple(key.strip() for key in os.environ.get(_KEYS_VARIABLE, "").split(",") if key.strip())
