"""`make bench-live`: what the router costs, beside other routers in the same run. Nothing fails on time.

Two workers that answer at once, a client on 64 connections, every process on this machine. The routers take turns for
several rounds; figures are medians with their range. vllm-router and sglang-router take part where they are installed
(`pip install vllm-router==0.1.17 sglang-router==0.3.2`), here or in --routers-venv.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bidroute.errors import BidrouteError
from bidroute.experiments.benchmarks import machine
from bidroute.report import check_writable, write_json
from tests.bench_live.measures import MEASURES, Sizes, Spread, one_round, ratio, spread, warm_up
from tests.bench_live.processes import workers
from tests.bench_live.routers import OURS, VLLM, available, router
from tests.bench_live.waiting import FIGURES, GAP_MS, RUNNING, waiting_rounds

WORKERS, STEP_MS, BATCH_SLOTS = 2, 10.0, 256
QUICK = Sizes(requests=300, seconds=1.0, connections=64, chunks=50)
WHOLE = Sizes(requests=1500, seconds=4.0, connections=64, chunks=300)

Rounds = dict[str, list[dict[str, float]]]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench_live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a rough answer: one short round")
    parser.add_argument("--routers", help="only these, by name: a,b,c")
    parser.add_argument(
        "--routers-venv",
        type=Path,
        default=os.environ.get("ROUTERS_VENV"),
        help="the environment in which the other routers are installed (or ROUTERS_VENV)",
    )
    parser.add_argument(
        "--waiting",
        type=int,
        metavar="N",
        help="instead: gaps between tokens while N requests wait, with price updates on and off",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


async def compare(given: argparse.Namespace, console: Console) -> Rounds:
    """Every router in turn, for several rounds."""
    sizes, count = (QUICK, 1) if given.quick else (WHOLE, given.rounds)
    commands = available(given.routers_venv)
    names = given.routers.split(",") if given.routers else list(commands)
    rounds: Rounds = {name: [] for name in names}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-live-")))
        upstream = await workers(WORKERS, STEP_MS, BATCH_SLOTS, folder, stack)
        running = {name: await router(name, commands[name], upstream, folder, stack) for name in names}
        for one in running.values():
            await warm_up(one, sizes)
        for index in range(count):
            for name in names[index % len(names) :] + names[: index % len(names)]:
                figures = await one_round(running[name], upstream, sizes)
                rounds[name].append(figures)
                told = ", ".join(f"{figures[one.name]:.{one.digits}f} {one.title}" for one in MEASURES)
                console.print(f"{index + 1} {name}: {told}", style="dim", soft_wrap=True)
    return rounds


def cost_table(rounds: Rounds) -> Table:
    """A row for each router, one below for its range; and how ours compares, round by round."""
    table = _table("router", [measure.title for measure in MEASURES])
    for name, figures in rounds.items():
        _add_rows(table, name, [(spread(figures, measure.name), measure.digits) for measure in MEASURES])
    for name in rounds:
        if name != OURS and OURS in rounds:
            ratios = [ratio(rounds[OURS], rounds[name], measure) for measure in MEASURES]
            table.add_row(f"÷ {name}", *(f"{one.median:.2f} ×" for one in ratios))
    return table


def waiting_table(rounds: Rounds) -> Table:
    """Gaps between chunks by what was in between."""
    table = _table("gaps in ms", list(FIGURES.values()))
    for name, measured in rounds.items():
        _add_rows(table, name, [(spread(measured, figure), 1) for figure in FIGURES])
    return table


def _table(first: str, titles: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _add_rows(table: Table, name: str, spreads: list[tuple[Spread, int]]) -> None:
    table.add_row(name, *(f"{one.median:.{digits}f}" for one, digits in spreads))
    table.add_row("", *(f"{one.least:.{digits}f}–{one.most:.{digits}f}" for one, digits in spreads), style="dim")


def main() -> int:
    given, console = _arguments(), Console(highlight=False)
    if given.json is not None:
        check_writable(given.json)
    facts = machine()
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()), markup=False)
    if given.waiting:
        rounds = asyncio.run(waiting_rounds(given.waiting, 1 if given.quick else given.rounds, console))
        table = waiting_table(rounds)
        console.print(f"\ngaps between tokens of {RUNNING} streams, one each {GAP_MS:g} ms; {given.waiting} wait:")
    else:
        rounds = asyncio.run(compare(given, console))
        table = cost_table(rounds)
        console.print(f"\nadded latency of one request at a time; {WHOLE.connections} connections; CPU of the router:")
        if VLLM not in rounds:
            console.print(f"{VLLM} is not installed; see --help", style="yellow")
    console.print(table)
    document: dict[str, Any] = {"machine": facts, "waiting": given.waiting or 0, "rounds": rounds}
    if given.json is not None:
        write_json(document, given.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BidrouteError as problem:
        sys.exit(f"error: {problem}")
