"""`bidroute bench`: how fast the simulator and the decisions are on this machine."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bidroute.experiments.benchmarks import SIZES, decision_times, peak_memory_mb, simulator_speed
from bidroute.experiments.verdict import SUBJECT


def bench_command(
    policy: Annotated[
        str, typer.Option(metavar="NAME", help="The policy whose decisions and price updates are timed.")
    ] = SUBJECT,
    epochs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Decisions timed for each size of fleet and queue.")
    ] = 300,
) -> None:
    """Time the simulator, and decisions over fleets and queues of several sizes. Nothing fails on time.

    Example:

      bidroute bench --policy bid_price
    """
    console = Console(highlight=False)
    speed = simulator_speed()
    console.print(
        f"simulator: {speed.requests_per_cpu_s:,.0f} requests per CPU-second "
        f"({speed.requests} requests, round robin, 8 aggregated workers)"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("devices", "waiting", "decision p50, µs", "p99, µs", "price update p50, µs", "p99, µs"):
        table.add_column(name, justify="right")
    for devices, waiting in SIZES:
        times = decision_times(policy, devices, waiting, epochs)
        figures = [*np.percentile(times.decide_us, (50, 99)), *np.percentile(times.update_us, (50, 99))]
        table.add_row(str(devices), str(waiting), *(f"{figure:,.0f}" for figure in figures))
    console.print(f"\n{policy}, one device starting a period:")
    console.print(table)
    console.print(f"\npeak memory: {peak_memory_mb():,.0f} MB")
