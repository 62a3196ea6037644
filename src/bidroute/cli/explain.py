"""`bidroute explain`: why one request waited, and why it was released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bidroute.cli import options
from bidroute.experiments import ScenarioSettings, explain
from bidroute.experiments.verdict import SUBJECT
from bidroute.report import check_writable, explanation_data, explanation_sentence, explanation_table, write_json

_REQUEST = "Which request"


@options.with_scenario()
def explain_command(
    *,
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
    settings: ScenarioSettings,
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
