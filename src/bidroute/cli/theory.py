"""`bidroute theory`: what theory says of online linear programs, observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bidroute.cli import options
from bidroute.cli.outputs import output_console
from bidroute.cli.progress import progress_bar
from bidroute.errors import ConfigError
from bidroute.report import check_writable, write_json
from bidroute.theory import observe

Row = dict[str, Any]
_ERROR = "_error"  # ends the name of what is shown as ± beside a mean
_IN_FILE_ONLY = ("lp", "integer_bound", "integer", "ours", "dual")  # the gaps say what these are for
_FULL: dict[str, Callable[[], Iterator[Row]]] = {
    "regret": observe.regret,
    "knapsacks": observe.knapsacks,
    "convergence": observe.convergence,
}
_QUICK: dict[str, Callable[[], Iterator[Row]]] = {
    "regret": lambda: observe.regret((250, 500, 1000), seeds=3),
    "knapsacks": lambda: observe.knapsacks((100,), (5,), (0.25, 0.5, 0.75), time_limit_s=2.0, seeds=1),
    "convergence": lambda: observe.convergence((10, 160), (8, 128), seeds=2),
}


def theory_command(
    part: Annotated[str, typer.Option(metavar="NAME", help="regret, knapsacks, convergence, or all of them.")] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="A small version, in seconds instead of minutes.")] = False,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=options.OUTPUT, help="Write all rows as JSON.")
    ] = None,
) -> None:
    """Observe the theory: regret over √n, knapsacks against their optimum, and how prices converge.

    An interrupt keeps the rows that are ready, also in the JSON file. Needs the extra `exact`.
    """
    parts = list(_FULL) if part == "all" else [part]
    if part != "all" and part not in _FULL:
        raise ConfigError(f"theory part {part!r} is unknown; choose from: {', '.join(_FULL)}, all")
    if json is not None:
        check_writable(json)
    done: dict[str, list[Row]] = {name: [] for name in parts}
    try:
        for name in parts:
            _observe(name, (_QUICK if quick else _FULL)[name](), done[name])
    finally:
        if json is not None:
            write_json(done, json)


def _observe(name: str, rows: Iterator[Row], done: list[Row]) -> None:
    console = output_console()
    try:
        with progress_bar(name) as on_progress:
            for row in rows:
                done.append(row)
                on_progress(len(done), len(done) + 1, ", ".join(f"{key} {_text(row[key])}" for key in list(row)[:3]))
    finally:
        if done:
            console.print(_table(name, done))
    if name == "regret":
        slopes = (f"{rule.replace('_', ' ')} {value:.2f}" for rule, value in observe.regret_slopes(done).items())
        console.print(f"log-log slope of the regret: {', '.join(slopes)}\n")


def _table(name: str, rows: list[Row]) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown = [key for key in rows[0] if key not in _IN_FILE_ONLY and not key.endswith(_ERROR)]
    for key in shown:
        table.add_column(key.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(_text(row[key]) + _spread(row, key) for key in shown))
    return table


def _spread(row: Row, key: str) -> str:
    error = row.get(key + _ERROR)
    return "" if error is None else f"±{_text(error)}"


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
