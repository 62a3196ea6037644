"""`bidroute recommend`: the objective that serves a stated goal on a user's own arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.outputs import check_outputs, command_line, output_console
from bidroute.cli.progress import progress_bar
from bidroute.cli.sweep import SEARCH, Knobs, Ray, SearchSeed
from bidroute.experiments import ScenarioSettings, cores
from bidroute.experiments.frontier.goals import GOAL_FORM, GOAL_MEASURES, parse_goal
from bidroute.experiments.frontier.recommend import DEFAULT_POINTS, DEFAULT_SEEDS, Recommendation, recommend
from bidroute.report import write_json
from bidroute.report.recommendations import (
    recommendation_data,
    recommendation_sentences,
    recommendation_table,
    recommended_options,
)

JOURNAL = Path("bidroute-recommend.jsonl")


@options.with_scenario()
def recommend_command(
    *,
    goal: Annotated[
        str,
        typer.Option(
            metavar=f"'{GOAL_FORM}'",
            rich_help_panel="Goal",
            help="Limits (NAME<NUMBER, or NAME>NUMBER for rates), and one min NAME or max NAME (min e2e_mean where not "
            f"said). Times are in seconds, or say ms. Names: {', '.join(GOAL_MEASURES)}.",
        ),
    ],
    settings: ScenarioSettings,
    knob: Knobs = None,
    points: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=SEARCH, help="How many settings to try beside the presets.")
    ] = DEFAULT_POINTS,
    search_seed: SearchSeed = 0,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=options.RUNS,
            help="Run every setting on seeds 0 to N-1; limits must hold for each of them.",
        ),
    ] = DEFAULT_SEEDS,
    jobs: options.Jobs = None,
    ray: Ray = None,
    journal: options.JournalOption = JOURNAL,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write the recommendation as JSON."),
    ] = None,
) -> None:
    """Recommend an --objective for a goal, from your own trace.

    Searches the weights of the objective on the first 60 % of a trace (of a built-in workload: on some draws of it),
    and checks the best on the rest (on others), beside the default and join_shortest_queue. It says when the goal
    cannot be reached and what comes closest. An interrupt loses no finished run: the same command goes on where it
    stopped.

    Examples:

      bidroute recommend --goal 'ttft_p99<4, min e2e_mean'

      bidroute recommend --trace trace.csv --speedup 13 --goal 'e2e_p99<20, max goodput' --slo ttft=1

      bidroute recommend --goal 'min e2e_p99' --knob patience --knob tail --knob risk_z
    """
    wanted = parse_goal(goal)
    check_outputs(settings.trace, {"--json": json, "--journal": journal})
    with progress_bar("searching") as on_progress, options.resumable(journal):
        advice = recommend(
            settings,
            wanted,
            knobs=knob,
            points=points,
            search_seed=search_seed,
            seeds=seeds,
            jobs=cores() if jobs is None else jobs,
            journal=journal,
            ray=ray,
            on_progress=on_progress,
        )
    advice.scenario["command"] = command_line()
    _show(advice)
    if json is not None:
        write_json(recommendation_data(advice), json)


def _show(advice: Recommendation) -> None:
    """Print what was searched and what came of it, what to type, and the figures."""
    console = output_console()
    for sentence in recommendation_sentences(advice):
        console.print(sentence, markup=False)
    console.print()
    console.print(recommended_options(advice), style="bold cyan", markup=False, soft_wrap=True)
    console.print()
    console.print(recommendation_table(advice))
