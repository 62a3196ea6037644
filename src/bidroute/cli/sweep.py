"""`bidroute sweep`: what settings of bid_price can reach, beside the presets and other policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.outputs import check_outputs, command_line, output_console
from bidroute.cli.progress import progress_bar
from bidroute.experiments import ScenarioSettings, cores
from bidroute.experiments.frontier import SearchSettings, Sweep, sweep
from bidroute.experiments.frontier.candidates import BASELINES
from bidroute.experiments.frontier.knobs import KNOBS
from bidroute.experiments.frontier.search import SEARCHES
from bidroute.experiments.frontier.sweep import DEFAULT_POINTS, DEFAULT_SEEDS
from bidroute.report import write_json
from bidroute.report.frontier_html import write_sweep_html
from bidroute.report.frontier_tables import front_sentence, front_table, hidden_rows, standings_table, sweep_data
from bidroute.report.sentences import scenario_phrase

SEARCH = "Search"
JOURNAL = Path("bidroute-sweep.jsonl")

Knobs = Annotated[
    list[str] | None,
    typer.Option(
        "--knob",
        metavar="NAME[=LOW..HIGH|=V,V,…]",
        show_default=False,
        rich_help_panel=SEARCH,
        help=f"What to turn, once per knob: {', '.join(KNOBS)}. risk_z, max_skips and step are options of bid_price, "
        "the others belong to the objective.",
    ),
]
SearchSeed = Annotated[
    int, typer.Option(metavar="N", min=0, rich_help_panel=SEARCH, help="The seed of the search's own draws.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        show_default=False,
        rich_help_panel=options.RUNS,
        help="Run on this Ray cluster instead: auto, HOST:PORT, ray://HOST:PORT, or local for one of this machine "
        "(pip install 'bidroute\\[ray]'; the same bidroute on every machine).",
    ),
]


@options.with_scenario()
def sweep_command(
    *,
    settings: ScenarioSettings,
    knob: Knobs = None,
    search: Annotated[
        str,
        typer.Option(
            metavar="|".join(SEARCHES),
            rich_help_panel=SEARCH,
            help="random: seeded draws from the ranges. grid: every combination (of a range its ends and middle). "
            "optuna: a multi-objective search (pip install 'bidroute\\[sweep]').",
        ),
    ] = "random",
    points: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=SEARCH,
            help="How many settings to try; 0 runs the presets and baselines alone.",
        ),
    ] = DEFAULT_POINTS,
    search_seed: SearchSeed = 0,
    baselines: Annotated[
        str,
        typer.Option(metavar="a,b,c", rich_help_panel=SEARCH, help="Other policies, to compare with."),
    ] = ",".join(BASELINES),
    seeds: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=options.RUNS, help="Run every setting on seeds 0 to N-1.")
    ] = DEFAULT_SEEDS,
    jobs: options.Jobs = None,
    ray: Ray = None,
    journal: options.JournalOption = JOURNAL,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write every point as JSON."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write the chart: one file, opens offline."),
    ] = None,
) -> None:
    """Sweep the settings of bid_price: which combinations of latency, tail and throughput can be had at all.

    Tries settings on top of the objective, beside every preset and the baselines, on the same arrivals. The front is
    what no other point beats on E2E mean, E2E p99, TTFT p99, tokens/s and goodput at once. An interrupt loses no
    finished point: the same command goes on where it stopped.

    Examples:

      bidroute sweep --html front.html

      bidroute sweep --knob patience=1..2.5 --knob tail=15,30,60 --search grid

      bidroute sweep --trace trace.csv --speedup 13 --points 200 --search optuna --ray auto
    """
    check_outputs(settings.trace, {"--json": json, "--html": html, "--journal": journal})
    chosen = SearchSettings(knob, search, points, search_seed, [name for name in baselines.split(",") if name.strip()])
    with progress_bar("sweeping") as on_progress, options.resumable(journal):
        swept = sweep(
            settings,
            chosen,
            seeds,
            cores() if jobs is None else jobs,
            journal=journal,
            ray=ray,
            on_progress=on_progress,
        )
    swept.scenario["command"] = command_line()
    _show(swept)
    if json is not None:
        write_json(sweep_data(swept), json)
    if html is not None:
        write_sweep_html(swept, html)
        typer.echo(f"chart: {options.shown(html)}")


def _show(swept: Sweep) -> None:
    """Print what was run, the front with presets and baselines, and the presets by their own goals."""
    console = output_console()
    for sentence in (scenario_phrase(swept.scenario), front_sentence(swept)):
        console.print(sentence, markup=False)
    console.print()
    console.print(front_table(swept))
    if hidden := hidden_rows(swept):
        console.print(f"{hidden} more settings are on the front: see --json or --html", style="dim")
    console.print()
    console.print(standings_table(swept))
