"""`bidroute bound`: what no policy can beat on these arrivals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bidroute.cli import options
from bidroute.cli.outputs import check_outputs, command_line, output_console
from bidroute.cli.progress import progress_bar
from bidroute.experiments import ScenarioSettings, scenario_bounds
from bidroute.experiments.bounding import DEFAULT_STEPS
from bidroute.report import write_json
from bidroute.report.numbers import figure
from bidroute.report.sentences import fleet_phrase


@options.with_scenario(
    "trace",
    "requests",
    "skip_bad_rows",
    "speedup",
    "load",
    "devices",
    "batch_slots",
    "kv_tokens",
    "fleet",
    "latency",
    "objective",
    "slo",
)
def bound_command(
    *,
    settings: ScenarioSettings,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Bound seeds 0 to N-1 of a built-in workload, each drawn anew.")
    ] = 1,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of the search for prices: more are tighter, any number is valid.")
    ] = DEFAULT_STEPS,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write scenario and bounds as JSON."),
    ] = None,
) -> None:
    """What no policy can beat, not even one that knows all arrivals and lengths: mean latencies, and the reward.

    Mode decode. The bounds on TTFT and on reward are for policies that never preempt. The reward is what the objective
    says a request is worth, without what grows with its wait. docs/bounds.md has the proofs.

    Examples:

      bidroute bound --requests 500 --objective latency

      bidroute bound --trace trace.csv --speedup 13 --devices 8 --json bounds.json
    """
    check_outputs(settings.trace, {"--json": json})
    with progress_bar("bounding") as on_progress:
        data = scenario_bounds(replace(settings, lengths="oracle"), seeds, steps, on_progress)
    data["scenario"]["command"] = command_line()
    _show(data)
    if json is not None:
        write_json(data, json)


def _show(data: dict[str, Any]) -> None:
    scenario = data["scenario"]
    workload = scenario["workload"]
    console = output_console()
    console.print(
        f"{workload['requests']} requests of {scenario['trace']} at ×{workload['speedup']:.4g} on "
        f"{fleet_phrase(scenario['fleet'])}. No policy has a lower mean latency, in seconds, or a higher mean "
        f"reward (objective {scenario['objective']}):",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in ("seed", "requests", "E2E mean", "quick bound on it", "TTFT mean*", "reward*"):
        table.add_column(head, justify="right")
    for row in data["bounds"]:
        figures = (figure(row[key]) for key in ("e2e_s", "quick_e2e_s", "ttft_s", "reward"))
        table.add_row(str(row["seed"]), str(row["requests"]), *figures)
    console.print(table)
    console.print("* without preemption", style="dim")
