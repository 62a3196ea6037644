"""`bidroute compare`: every named policy on the same arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.outputs import check_outputs, command_line, output_console
from bidroute.cli.progress import progress_bar
from bidroute.errors import ConfigError
from bidroute.experiments import (
    Comparison,
    ScenarioSettings,
    add_bounds,
    compare,
    cores,
    judge,
    scenario_bounds,
)
from bidroute.experiments.comparison import DEFAULT_POLICIES, DEFAULT_SEEDS
from bidroute.report import (
    comparison_data,
    comparison_table,
    losses_sentence,
    scenario_sentence,
    verdict_sentence,
    write_html,
    write_json,
    write_per_request_csv,
)


@options.with_scenario()
def compare_command(
    *,
    settings: ScenarioSettings,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="a,b,c|all",
            show_default=False,
            rich_help_panel="Routing",
            help=f"The policies to compare. {options.POLICY_OPTIONS} Not given: {', '.join(DEFAULT_POLICIES)}.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=options.RUNS,
            help="Run seeds 0 to N-1. A seed changes the draw of a built-in workload, the noise of predicted lengths, "
            "and the policies' own randomness; a recorded trace stays as it is.",
        ),
    ] = DEFAULT_SEEDS,
    jobs: options.Jobs = None,
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            rich_help_panel=options.RUNS,
            help="Also compute what no policy can beat (bidroute bound) and show every mean as a multiple of it. "
            "Mode decode only; takes a minute or more per seed.",
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write scenario and results as JSON."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write the report: one file, opens offline."),
    ] = None,
    per_request: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", rich_help_panel=options.OUTPUT, help="Write one row per policy, seed and request."
        ),
    ] = None,
) -> None:
    """Compare routing policies on the same arrivals: latency, throughput, goodput, preemptions.

    Without options it runs a built-in workload on four workers whose KV cache binds, in well under a minute.
    Figures are medians over the seeds, ± half of their range.

    Examples:

      bidroute compare --html report.html

      bidroute compare --trace trace.csv --speedup 13 --policies all

      bidroute compare --policies power_of_d,power_of_d:d=4,bid_price,bid_price:risk_z=1:max_skips=4

      bidroute compare --fleet fleet.yaml --mode aggregated --json out.json
    """
    if bound and settings.mode != "decode":
        raise ConfigError(f"--bound with mode {settings.mode}; bounds are known for mode decode only")
    check_outputs(settings.trace, {"--json": json, "--html": html, "--per-request": per_request})
    with progress_bar("comparing") as on_progress:
        comparison = compare(
            settings,
            None if policies is None else policies.split(","),
            seeds,
            cores() if jobs is None else jobs,
            keep_timelines=html is not None,
            keep_requests=per_request is not None,
            on_progress=on_progress,
        )
    if bound:
        with progress_bar("bounding") as on_progress:
            add_bounds(comparison, scenario_bounds(settings, seeds, on_progress=on_progress))
    comparison.scenario["command"] = command_line()
    show(comparison)
    if json is not None:
        write_json(comparison_data(comparison), json)
    if per_request is not None:
        write_per_request_csv(comparison, per_request)
    if html is not None:
        write_html(comparison, html)
        typer.echo(f"report: {options.shown(html)}")


def show(comparison: Comparison) -> None:
    """Print the scenario, who wins, the table and the notes."""
    verdict = judge(comparison)
    sentences = [scenario_sentence(comparison)]
    if verdict is not None:
        sentences.append(" ".join([verdict_sentence(verdict), losses_sentence(verdict)]).strip())
    show_table(comparison, sentences)


def show_table(comparison: Comparison, sentences: Sequence[str]) -> None:
    """Print the sentences, the table and the notes."""
    console = output_console()
    for sentence in sentences:
        console.print(sentence, markup=False)
    console.print()
    console.print(comparison_table(comparison, console.width))
    for note in comparison.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
