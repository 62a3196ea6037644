"""The options that commands share: what is run, on what fleet, under which objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from bidroute.experiments import ScenarioSettings
from bidroute.experiments import settings as defaults
from bidroute.experiments.load import TARGET_LOAD
from bidroute.simulator import latency_names

_WORKLOAD = "Workload"
_FLEET = "Fleet"
_ENGINE = "Engines"
_ROUTING = "Routing"
OUTPUT = "Output"
RUNS = "Runs"
POLICY_OPTIONS = (
    "Options follow a name after colons, as in power_of_d:d=3 or bid_price:risk_z=2:max_skips=4; those of fifo, "
    "shortest_first and least_footprint are max_skips, with +safety risk_z, and with +ageing ageing_s; "
    "resolve_lp:every=200 solves for the exact prices every 200 periods."
)

Trace = Annotated[
    str,
    typer.Option(
        metavar="FILE|builtin:NAME",
        rich_help_panel=_WORKLOAD,
        help="The arrivals: a trace file (Azure, Mooncake, Vidur, BurstGPT, ShareGPT or CSV; FORMAT:FILE forces a "
        "format, as in sharegpt-turns:chats.json), or a built-in workload: azure-conv-like, azure-code-like, "
        "reasoning-like, long-context-like.",
    ),
]
Requests = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        show_default=False,
        rich_help_panel=_WORKLOAD,
        help=f"Use the first N requests. Not given: all of a file, {defaults.DEFAULT_REQUESTS} of a built-in.",
    ),
]
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", rich_help_panel=_WORKLOAD, help="Skip (and count) bad rows instead of refusing."),
]
Speedup = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        show_default=False,
        rich_help_panel=_WORKLOAD,
        help="Let the requests arrive X times faster. Not given: 1 for a file; for a built-in, whatever loads the "
        f"fleet to {TARGET_LOAD:g} of its estimated capacity.",
    ),
]
Load = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        show_default=False,
        rich_help_panel=_WORKLOAD,
        help="Instead of --speedup: let them arrive as fast as loads the fleet to X of its estimated capacity, such as "
        "0.85.",
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        metavar="G",
        show_default=False,
        rich_help_panel=_FLEET,
        help=f"How many decode workers, all alike ({defaults.DEFAULT_DEVICES}).",
    ),
]
BatchSlots = Annotated[
    int | None,
    typer.Option(
        metavar="B",
        show_default=False,
        rich_help_panel=_FLEET,
        help=f"How many requests each runs at once ({defaults.DEFAULT_BATCH_SLOTS}).",
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        metavar="C",
        show_default=False,
        rich_help_panel=_FLEET,
        help=f"How many KV-cache tokens each holds ({defaults.DEFAULT_KV_TOKENS}; more for built-in workloads of "
        "long requests; with a packaged latency table, what that hardware holds).",
    ),
]
FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--fleet",
        metavar="FILE.yaml",
        rich_help_panel=_FLEET,
        help="Unlike workers instead: a list [bold]devices[/bold] of {name, count, batch_slots, kv_tokens, block_size, "
        "latency, prefill, speed, token_budget}.",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        rich_help_panel=_ENGINE,
        help="decode: requests arrive with their prefill done. aggregated: each worker prefills too (chunked). "
        "disaggregated:P: P prefill workers before the decode workers.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="k=v,…",
        show_default=False,
        rich_help_panel=_ENGINE,
        help="block_size=TOKENS (1), max_batched_tokens=N per pass (8192), eviction=preempt|reserve (preempt), "
        "budget=told|hidden (told: the router knows that N, mode aggregated); one or more, such as "
        "block_size=16,eviction=reserve.",
    ),
]
Latency = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        rich_help_panel=_ENGINE,
        help="Seconds per decode iteration: affine:A,B,C for A + B·batch + C·KV tokens, or the name of a packaged "
        f"table of real hardware: {', '.join(latency_names())}.",
    ),
]
Prefill = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        rich_help_panel=_ENGINE,
        help="Seconds per prefill: affine:P0,P1 for P0 + P1·new tokens, or the name of a packaged table. Not used in "
        "mode decode.",
    ),
]
Recompute = Annotated[
    float,
    typer.Option(
        metavar="S",
        rich_help_panel=_ENGINE,
        help="Seconds to recompute one token of a preempted request (mode decode).",
    ),
]
Lengths = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        rich_help_panel=_ROUTING,
        help="What the router knows of output lengths before they end: oracle (the truth), noisy:SIGMA (the truth "
        "times log-normal noise), uniform:SHARE (the truth give or take a share), prompt (classes by prompt length), "
        "none (only what finished requests teach it).",
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        metavar="PRESET|k=v,…",
        rich_help_panel=_ROUTING,
        help="What price-based policies aim for: balanced, ttft, latency, throughput, tail, goodput; or k=v,… to "
        "change weights of balanced, such as latency=2,tail=10; or both: ttft,patience=1.5.",
    ),
]
SloOption = Annotated[
    str,
    typer.Option(
        "--slo",
        metavar="ttft=S,e2e=S,tpot=S",
        show_default=False,
        rich_help_panel=_ROUTING,
        help="What a request must meet, in seconds, to count as goodput (ttft=2,e2e=30,tpot=0.1); the policies know it "
        "too.",
    ),
]


Traces = Annotated[
    list[str] | None,
    typer.Option(
        "--trace",
        metavar="FILE|builtin:NAME",
        show_default=False,
        rich_help_panel=_WORKLOAD,
        help="The arrivals, as for compare; may be given several times. Files too come at the load asked for.",
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        metavar="N",
        rich_help_panel=RUNS,
        help="Run seeds 0 to N-1: other draws of a built-in workload, other noise, other luck of the policies.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N", show_default=False, rich_help_panel=RUNS, help="Processes to run on. Not given: all cores."
    ),
]
JournalOption = Annotated[
    Path,
    typer.Option(
        "--journal",
        metavar="FILE.jsonl",
        rich_help_panel=RUNS,
        help="Finished runs are appended here, and those found here are not run again.",
    ),
]


# What `ScenarioSettings` is made of, in the order of --help: its options and their defaults.
_SCENARIO: dict[str, tuple[Any, Any]] = {
    "trace": (Trace, defaults.DEFAULT_TRACE),
    "requests": (Requests, None),
    "skip_bad_rows": (SkipBadRows, False),
    "speedup": (Speedup, None),
    "load": (Load, None),
    "devices": (Devices, None),
    "batch_slots": (BatchSlots, None),
    "kv_tokens": (KvTokens, None),
    "fleet": (FleetFile, None),
    "mode": (Mode, "decode"),
    "engine": (Engine, ""),
    "latency": (Latency, defaults.DEFAULT_LATENCY),
    "prefill": (Prefill, defaults.DEFAULT_PREFILL),
    "recompute": (Recompute, defaults.DEFAULT_RECOMPUTE_S),
    "lengths": (Lengths, "none"),
    "objective": (Objective, "balanced"),
    "slo": (SloOption, ""),
}
_FIELDS = {"recompute": "recompute_s_per_token"}  # where the field has another name


def with_scenario(*only: str, name: str = "settings") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a scenario (all of them, or `only` these) in the place of its parameter `name`.

    It is called with the `ScenarioSettings` made of what the user gave. Its own parameters are by keyword only.
    """
    given = only or tuple(_SCENARIO)

    def expanded(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(**values: Any) -> None:
            fields = {_FIELDS.get(option, option): values.pop(option) for option in given}
            command(**{name: ScenarioSettings(**fields)}, **values)

        parameters: list[Parameter] = []
        for parameter in signature(command, eval_str=True).parameters.values():
            if parameter.name != name:
                parameters.append(parameter)
                continue
            for option in given:
                annotation, default = _SCENARIO[option]
                parameters.append(Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
        # typer reads both
        vars(called)["__signature__"] = Signature(parameters)
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return expanded


def names(text: str) -> tuple[str, ...]:
    """The parts of `a,b,c`, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@contextmanager
def resumable(journal: Path) -> Iterator[None]:
    """Say at an interrupt where the finished runs are."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"finished runs are kept in {journal}; the same command goes on from there", err=True)
        raise


def shown(path: Path) -> str:
    """The path as a user can click it or copy it."""
    return str(path.resolve())
