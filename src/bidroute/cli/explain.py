"""`bidroute explain`: why one request waited, and why it was released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bidroute.cli import options
from bidroute.experiments import ScenarioSettings, explain
from bidroute.experiments import settings as defaults
from bidroute.experiments.verdict import SUBJECT
from bidroute.report import check_writable, explanation_data, explanation_sentence, explanation_table, write_json

_REQUEST = "Which request"


def explain_command(
    request: Annotated[
        int | None,
        typer.Option(
            metavar="ID",
            show_default=False,
            rich_help_panel=_REQUEST,
            help="The request, by its place in the trace (the first is 0). Not given: the one held longest.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_REQUEST,
            help=f"The policy whose run is explained. {options.POLICY_OPTIONS}",
        ),
    ] = SUBJECT,
    seed: Annotated[int, typer.Option(metavar="N", rich_help_panel=_REQUEST, help="The seed of that run.")] = 0,
    trace: options.Trace = defaults.DEFAULT_TRACE,
    requests: options.Requests = None,
    skip_bad_rows: options.SkipBadRows = False,
    speedup: options.Speedup = None,
    devices: options.Devices = None,
    batch_slots: options.BatchSlots = None,
    kv_tokens: options.KvTokens = None,
    fleet: options.FleetFile = None,
    mode: options.Mode = "decode",
    engine: options.Engine = "",
    latency: options.Latency = defaults.DEFAULT_LATENCY,
    prefill: options.Prefill = defaults.DEFAULT_PREFILL,
    recompute: options.Recompute = defaults.DEFAULT_RECOMPUTE_S,
    lengths: options.Lengths = "none",
    objective: options.Objective = "balanced",
    slo: options.SloOption = "",
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write every decision as JSON."),
    ] = None,
) -> None:
    """Explain one request: every decision it lived through, what held it, and what was taken instead.

    Reward by term and price by resource are in reward units; the request is released when reward exceeds price
    and it fits. Decisions with the same outcome share a row: "0.3 → 0.7" is how a figure moved meanwhile.

    Examples:

      bidroute explain

      bidroute explain --request 120 --policy fifo+safety --json why.json
    """
    settings = ScenarioSettings(
        trace=trace,
        requests=requests,
        skip_bad_rows=skip_bad_rows,
        speedup=speedup,
        devices=devices,
        batch_slots=batch_slots,
        kv_tokens=kv_tokens,
        fleet=fleet,
        mode=mode,
        engine=engine,
        latency=latency,
        prefill=prefill,
        recompute_s_per_token=recompute,
        lengths=lengths,
        objective=objective,
        slo=slo,
    )
    if json is not None:
        check_writable(json)
    explained = explain(settings, policy, request, seed)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    console.print(explanation_sentence(explained), markup=False)
    console.print()
    console.print(explanation_table(explained))
    if json is not None:
        write_json(explanation_data(explained), json)
