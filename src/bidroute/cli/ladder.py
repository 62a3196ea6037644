"""`bidroute ladder`: what each idea between dispatch on arrival and bid_price is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.outputs import check_outputs, command_line, output_console
from bidroute.cli.progress import progress_bar
from bidroute.experiments import ScenarioSettings, cores
from bidroute.experiments.comparison import DEFAULT_SEEDS
from bidroute.experiments.ladder import BINDS, DEFAULT_LOAD, DEFAULT_REQUESTS, LENGTHS, Ladder, LadderSettings, climb
from bidroute.experiments.ladder import DEFAULT_TRACES as ALL_BUILTIN
from bidroute.report import write_json
from bidroute.report.ladder import E2E_MEAN, E2E_P99, cell_table, cell_title, ladder_data, ladder_sentences, worth_table
from bidroute.report.ladder_page import write_ladder_html

JOURNAL = Path("bidroute-ladder.jsonl")


@options.with_scenario(
    *("skip_bad_rows", "devices", "kv_tokens", "mode", "engine", "latency", "prefill", "recompute", "slo"), name="base"
)
def ladder_command(
    *,
    trace: options.Traces = None,
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help=f"Use the first N requests. Not given: all of a file, {DEFAULT_REQUESTS} of a built-in.",
        ),
    ] = None,
    load: Annotated[
        float, typer.Option(metavar="X", help="Arrivals over the estimated capacity of the fleet, on every workload.")
    ] = DEFAULT_LOAD,
    base: ScenarioSettings,
    binds: Annotated[
        str, typer.Option(metavar="kv,slots", help="What is scarce: the KV cache, the batch slots, or each in turn.")
    ] = ",".join(BINDS),
    lengths: Annotated[
        str, typer.Option(metavar="a,b,c", help="What is known of output lengths: known, noisy (σ 0.6), none.")
    ] = ",".join(LENGTHS),
    seeds: options.Seeds = DEFAULT_SEEDS,
    jobs: options.Jobs = None,
    journal: options.JournalOption = JOURNAL,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write settings, runs and worths as JSON."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write charts: one file, opens offline."),
    ] = None,
) -> None:
    """Climb from dispatch on arrival to bid_price, one idea at a time: what is each worth?

    The rungs run on the same arrivals, where KV binds and where batch slots bind, on every workload. Changes are
    against the rung below, medians over workloads and seeds. Finished runs are kept in the journal: the same command
    goes on where it was interrupted.

    Examples:

      bidroute ladder --html ladder.html

      bidroute ladder --trace trace.csv --requests 3000 --binds kv --lengths noisy,none
    """
    settings = LadderSettings(
        traces=tuple(trace or ALL_BUILTIN),
        requests=requests,
        binds=options.names(binds),
        lengths=options.names(lengths),
        load=load,
        base=base,
        seeds=seeds,
    )
    for one in settings.traces:
        check_outputs(one, {"--journal": journal, "--json": json, "--html": html})
    with progress_bar("climbing") as on_progress, options.resumable(journal):
        ladder = climb(settings, cores() if jobs is None else jobs, journal, on_progress)
    show(ladder)
    if json is not None:
        write_json({"command": command_line(), **ladder_data(ladder)}, json)
    if html is not None:
        write_ladder_html(ladder, command_line(), html)
        typer.echo(f"report: {options.shown(html)}")


def show(ladder: Ladder) -> None:
    """Print the figures of every workload and fleet, then what each step is worth."""
    console = output_console()
    settings = ladder.settings
    for trace in settings.traces:
        for binds in settings.binds:
            cells = [cell for cell in ladder.cells_of(binds) if cell.trace == trace]
            console.print(f"{cell_title(cells[0])}:", markup=False)
            console.print(cell_table(cells, console.width))
            console.print()
    for measure in (E2E_MEAN, E2E_P99):
        console.print(f"{measure.label}, change by each step:", markup=False)
        console.print(worth_table(ladder, measure))
        console.print()
    for sentence in ladder_sentences(ladder):
        console.print(sentence, markup=False)
