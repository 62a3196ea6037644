"""`bidroute replay`: a trace against a live endpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.compare import show_table
from bidroute.cli.extras import require_serve
from bidroute.cli.outputs import check_outputs, command_line
from bidroute.cli.progress import progress_bar
from bidroute.experiments.options import parse_slo
from bidroute.replay.settings import DEFAULT_REQUESTS, ReplaySettings
from bidroute.report import comparison_data, write_json, write_per_request_csv

_TARGET = "Endpoint"
_RUNS = "Runs"


def replay_command(
    target: Annotated[
        str, typer.Option(metavar="URL", rich_help_panel=_TARGET, help="The endpoint: a router, or one server.")
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            show_default=False,
            rich_help_panel=_TARGET,
            help="The model to ask for. Not given: the first that the endpoint lists.",
        ),
    ] = "",
    chat: Annotated[
        bool, typer.Option("--chat", rich_help_panel=_TARGET, help="Use /v1/chat/completions, not /v1/completions.")
    ] = False,
    api_key_env: Annotated[
        str,
        typer.Option(
            metavar="VARIABLE",
            show_default=False,
            rich_help_panel=_TARGET,
            help="Environment variable that holds the endpoint's API key.",
        ),
    ] = "",
    scrape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            show_default=False,
            rich_help_panel=_TARGET,
            help="A worker whose /metrics (vLLM or SGLang) tell preemptions and its own queue; may be repeated.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="S", rich_help_panel=_TARGET, help="Give a request up so long after its arrival."),
    ] = 600.0,
    trace: options.Trace = "builtin:azure-conv-like",
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            rich_help_panel="Workload",
            help=f"Use the first N requests. Not given: all of a file, {DEFAULT_REQUESTS} of a built-in.",
        ),
    ] = None,
    skip_bad_rows: options.SkipBadRows = False,
    speedup: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            show_default=False,
            rich_help_panel="Workload",
            help="Let the requests arrive X times faster. Not given: as the trace has it.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            show_default=False,
            rich_help_panel="Workload",
            help="Instead of --speedup: let R requests arrive per second, on average.",
        ),
    ] = None,
    bytes_per_token: Annotated[
        float,
        typer.Option(
            metavar="X",
            rich_help_panel="Workload",
            help="Bytes of made-up prompt text per wanted prompt token.",
        ),
    ] = 4.0,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_RUNS,
            help="Replay seeds 0 to N-1, one after the other; a seed changes the draw of a built-in workload.",
        ),
    ] = 1,
    label: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_RUNS, help="Name of the row in the table.")
    ] = "replay",
    slo: options.SloOption = "",
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write settings and results as JSON."),
    ] = None,
    per_request: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", rich_help_panel=options.OUTPUT, help="Write one row per seed and request."),
    ] = None,
) -> None:
    """Send a trace to an OpenAI endpoint, every request at its time, and report the table that compare prints.

    Prompts are made up to the trace's lengths; max_tokens with ignore_eos forces the output lengths.

    Examples:

      bidroute replay --target http://127.0.0.1:8000

      bidroute replay --target http://127.0.0.1:8000 --trace trace.csv --rate 12 --scrape http://127.0.0.1:8101
    """
    if api_key_env and api_key_env not in os.environ:
        raise typer.BadParameter(f"the environment has no {api_key_env}")
    settings = ReplaySettings(
        target=target,
        model=model,
        label=label,
        trace=trace,
        requests=requests,
        skip_bad_rows=skip_bad_rows,
        speedup=speedup,
        rate_per_s=rate,
        timeout_s=timeout,
        bytes_per_token=bytes_per_token,
        chat=chat,
        api_key=os.environ[api_key_env] if api_key_env else "",
        scrape=tuple(scrape or ()),
        slo=parse_slo(slo),
    )
    check_outputs(trace, {"--json": json, "--per-request": per_request})
    require_serve("bidroute replay")
    from bidroute.replay.results import comparison_of, sentence
    from bidroute.replay.run import replay_all

    with progress_bar("replaying") as on_progress:
        comparison = comparison_of(settings, replay_all(settings, seeds, on_progress))
    comparison.scenario["command"] = command_line()
    show_table(comparison, [sentence(comparison)])
    if json is not None:
        write_json(comparison_data(comparison), json)
    if per_request is not None:
        write_per_request_csv(comparison, per_request)
