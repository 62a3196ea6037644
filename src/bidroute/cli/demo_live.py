"""`bidroute demo-live`: the live router against a rotation, on three unlike workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bidroute.cli import options
from bidroute.cli.compare import show_table
from bidroute.cli.extras import require_serve
from bidroute.cli.progress import progress_bar
from bidroute.experiments import judge
from bidroute.report import check_writable, comparison_data, verdict_sentence, write_json


def demo_live_command(
    policies: Annotated[
        str, typer.Option(metavar="a,b,c", help="The policies to run, one after the other.")
    ] = "bid_price,round_robin",
    requests: Annotated[int, typer.Option(metavar="N", help="Requests of the burst.")] = 200,
    time_scale: Annotated[
        float, typer.Option(metavar="X", help="Run workers and arrivals X times faster than real.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the burst.")] = 0,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write settings and results as JSON."),
    ] = None,
) -> None:
    """Show the router at work: three unlike workers, a bursty workload, the price-based policy against a rotation.

    Starts the workers and the router as processes of their own on free ports of this machine, replays the same
    requests under each policy, prints how they compare, and stops everything.
    """
    if json is not None:
        check_writable(json)
    require_serve("bidroute demo-live")
    from bidroute.replay.demo import FLEET, Demo, run_demo

    demo = Demo(tuple(filter(None, map(str.strip, policies.split(",")))), requests, time_scale, seed)
    for worker in FLEET:
        typer.echo(f"worker {worker.name}: {worker.batch_slots} slots, {worker.kv_tokens} KV tokens")
    with progress_bar("replaying") as on_progress:
        comparison = run_demo(demo, typer.echo, on_progress)
    verdict = judge(comparison)
    scale = f"{requests} requests in bursts; times are wall seconds, at {time_scale:g} × real speed."
    typer.echo()
    show_table(comparison, [scale] if verdict is None else [verdict_sentence(verdict), scale])
    if json is not None:
        write_json(comparison_data(comparison), json)
