"""`bidroute bench`: how fast the simulator and the decisions are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bidroute.cli import options
from bidroute.experiments import benchmarks
from bidroute.experiments.benchmarks import DecisionTimes, decision_times, machine, peak_memory_mb, simulator_speed
from bidroute.experiments.comparison import chosen_policies
from bidroute.policies import Timing, build_policy
from bidroute.report import check_writable, write_json

QUICKLY = 10  # times fewer requests and decisions, and no more than
QUICK_WAITING = 1000  # of these waiting


def bench_command(
    policies: Annotated[
        str,
        typer.Option(
            metavar="a,b,c|all",
            help=f"The policies whose decisions and price updates are timed. {options.POLICY_OPTIONS}",
        ),
    ] = ",".join(benchmarks.POLICIES),
    epochs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Decisions timed for each size of fleet and queue.")
    ] = 300,
    quick: Annotated[bool, typer.Option("--quick", help="A rough answer in a few seconds: small sizes only.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write the figures as JSON.")
    ] = None,
) -> None:
    """Time the simulator, and decisions over fleets and queues of several sizes. Nothing fails on time.

    Examples:

      bidroute bench --quick

      bidroute bench --policies bid_price --json bench.json
    """
    names = chosen_policies(policies.split(","))
    for name in names:
        build_policy(name)  # refuses wrong ones at once
    if json is not None:
        check_writable(json)
    console = Console(highlight=False)
    facts = machine()
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()), markup=False)
    speed = simulator_speed(100_000 // (QUICKLY if quick else 1))
    console.print(
        f"simulator: {speed.requests_per_cpu_s:,.0f} requests per CPU-second "
        f"({speed.requests} requests, round robin, 8 aggregated workers)"
    )
    rows = [_figures(times) for times in _timed(names, max(epochs // (QUICKLY if quick else 1), 1), quick)]
    console.print("\nwall time in µs of one decision, and of the price update before it:")
    console.print(_table(rows))
    console.print(f"\npeak memory: {peak_memory_mb():,.0f} MB")
    if json is not None:
        simulator = {"requests": speed.requests, "cpu_s": speed.cpu_s, "requests_per_cpu_s": speed.requests_per_cpu_s}
        write_json(
            {"machine": facts, "simulator": simulator, "decisions": rows, "peak_memory_mb": peak_memory_mb()}, json
        )


def _timed(names: list[str], epochs: int, quick: bool) -> list[DecisionTimes]:
    """Every policy at every size: one device starting a period, then all of them at once."""
    runs = []
    for name in names:
        runs += [(name, size, False) for size in benchmarks.SIZES]
        if build_policy(name).timing is Timing.WHEN_STARTABLE:  # the others are always offered all
            runs += [(name, size, True) for size in benchmarks.AT_ONCE_SIZES]
    return [
        decision_times(name, devices, waiting, epochs, at_once=at_once)
        for name, (devices, waiting), at_once in runs
        if not quick or waiting <= QUICK_WAITING
    ]


def _figures(times: DecisionTimes) -> dict[str, Any]:
    def spread(values: Any) -> dict[str, float]:
        p50, p99 = np.percentile(values, (50, 99)).tolist()
        return {"p50": p50, "p99": p99}

    return {
        "policy": times.policy,
        "devices": times.devices,
        "waiting": times.waiting,
        "offered": times.offered,
        "decision_us": spread(times.decide_us),
        "update_us": spread(times.update_us),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("policy")
    for name in ("devices", "waiting", "offered", "decision p50", "p99", "update p50", "p99"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = [row[kind][share] for kind in ("decision_us", "update_us") for share in ("p50", "p99")]
        counts = [str(row[name]) for name in ("devices", "waiting", "offered")]
        table.add_row(row["policy"], *counts, *(f"{figure:,.0f}" for figure in figures))
    return table
