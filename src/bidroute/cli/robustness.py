"""`bidroute robustness`: the default policy where something goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.outputs import check_outputs, command_line, output_console
from bidroute.cli.progress import progress_bar
from bidroute.experiments import ScenarioSettings, cores
from bidroute.experiments.comparison import DEFAULT_SEEDS
from bidroute.experiments.robustness import (
    BASELINES,
    DEFAULT_REQUESTS,
    DEFAULT_TRACES,
    CaseResult,
    RobustnessSettings,
    run_cases,
)
from bidroute.experiments.robustness_cases import CASES, chosen_cases
from bidroute.report import write_json
from bidroute.report.robustness import failure_sentences, robustness_data, robustness_table

JOURNAL = Path("bidroute-robustness.jsonl")
_GROUPS = ", ".join(dict.fromkeys(case.group for case in CASES))


@options.with_scenario("skip_bad_rows", "devices", "kv_tokens", "mode", "engine", "objective", name="base")
def robustness_command(
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
    cases: Annotated[
        str | None,
        typer.Option(
            metavar="a,b,c", show_default=False, help=f"Groups ({_GROUPS}) or single cases. Not given: all of them."
        ),
    ] = None,
    base: ScenarioSettings,
    policies: Annotated[
        str,
        typer.Option(
            metavar="a,b,c|all",
            rich_help_panel="Routing",
            help=f"The policies to compare with, beside join_shortest_queue. {options.POLICY_OPTIONS}",
        ),
    ] = ",".join(BASELINES),
    seeds: options.Seeds = DEFAULT_SEEDS,
    jobs: options.Jobs = None,
    journal: options.JournalOption = JOURNAL,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write every case and run as JSON."),
    ] = None,
) -> None:
    """Where something goes wrong, is bid_price still better than join-shortest-queue?

    Wrong lengths, shifting and bursting arrivals, other mixes of prompt and output, unlike workers, a worker lost or
    joined meanwhile. Changes are medians over the seeds ± half of their range; where the default falls below
    join-shortest-queue on E2E mean or p99 it is said at the end. Finished runs are kept in the journal: the same
    command goes on where it was interrupted.

    Examples:

      bidroute robustness

      bidroute robustness --cases "fleet changes,unlike devices" --trace trace.csv --json out.json
    """
    settings = RobustnessSettings(
        cases=tuple(chosen_cases(None if cases is None else list(options.names(cases)))),
        traces=tuple(trace or DEFAULT_TRACES),
        baselines=tuple(policies.split(",")),
        base=replace(base, requests=requests),
        seeds=seeds,
    )
    for one in settings.traces:
        check_outputs(one, {"--journal": journal, "--json": json})
    with progress_bar("trying") as on_progress, options.resumable(journal):
        results = run_cases(settings, cores() if jobs is None else jobs, journal, on_progress)
    show(results)
    if json is not None:
        write_json({"command": command_line(), **robustness_data(results)}, json)


def show(results: list[CaseResult]) -> None:
    """Print a table per trace, then where the default falls below."""
    console = output_console()
    for trace in dict.fromkeys(result.trace for result in results):
        some = [result for result in results if result.trace == trace]
        console.print(f"{trace}, {some[0].requests} requests, {len(some[0].runs.seeds)} seeds:", markup=False)
        console.print(robustness_table(some))
        console.print()
    for sentence in failure_sentences(results):
        console.print(sentence, markup=False)
