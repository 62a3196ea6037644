"""The ladder as terminal tables, sentences and data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from bidroute.experiments.describe import finite
from bidroute.experiments.ladder import RUNGS, Cell, Ladder, worth_nothing
from bidroute.experiments.measures import MEASURES, Measure
from bidroute.report.numbers import figure, percent, spread_figure
from bidroute.report.tables import SPREAD_WIDTH

E2E_MEAN, E2E_P99, TTFT_MEAN, TTFT_P99, TOKENS = MEASURES[:5]
BIND_NAMES = {"kv": "KV binds", "slots": "slots bind"}
_STYLES = {1: "green", -1: "red", 0: "bright_black"}


def worth_table(ladder: Ladder, measure: Measure) -> Table:
    """What each step changed in one figure: the median over workloads and seeds, a column per knowledge of lengths and
    what binds. Green and red where it holds for three quarters of them."""
    table = _table()
    settings = ladder.settings
    columns = [(binds, kind) for binds in settings.binds for kind in settings.lengths]
    for binds, kind in columns:
        table.add_column(f"{BIND_NAMES[binds]}\n{kind}", justify="right", no_wrap=True)
    for step in range(1, len(RUNGS)):
        worths = [ladder.worth(step, measure, *column) for column in columns]
        cells = [Text(worth_text(one.middle), style=_STYLES[one.verdict]) for one in worths]
        table.add_row(RUNGS[step].name, *cells)
    return table


def cell_table(cells: list[Cell], width: int = 100) -> Table:
    """The figures of one workload on one fleet: a row per rung, E2E mean and p99 for each knowledge of lengths."""
    table = _table()
    for cell in cells:
        for measure in (E2E_MEAN, E2E_P99):
            table.add_column(f"{cell.lengths}\n{measure.label.split()[1]}, s", justify="right", no_wrap=True)
    for rung in RUNGS:
        row = []
        for cell in cells:
            for measure in (E2E_MEAN, E2E_P99):
                spread = cell.runs.spread(rung.name, measure.path)
                text = Text(figure(spread.median))
                if width >= SPREAD_WIDTH:
                    text.append(spread_figure(spread), style="bright_black")
                row.append(text)
        table.add_row(rung.name, *row)
    return table


def cell_title(cell: Cell) -> str:
    """The workload and the fleet of a cell."""
    fleet = cell.fleet
    rate = "all at once" if fleet["requests_per_s"] is None else f"{fleet['requests_per_s']:.3g}/s"
    return (
        f"{cell.trace}, {BIND_NAMES[cell.binds]}: {fleet['requests']} requests, {rate}, {fleet['devices']} devices of "
        f"{fleet['batch_slots']} slots, {fleet['kv_tokens']} KV tokens"
    )


def worth_text(change: float) -> str:
    """`−12 %`, or a dash."""
    return "–" if change != change else percent(change).replace("\N{NO-BREAK SPACE}", "")


def ladder_sentences(ladder: Ladder) -> list[str]:
    """What the whole climb is worth, and which steps are worth nothing."""
    sentences = []
    for measure in (E2E_MEAN, E2E_P99):
        steps = []
        for step in range(1, len(RUNGS)):
            worth = ladder.worth(step, measure)
            steps.append(f"{RUNGS[step].name} {worth_text(worth.middle)}")
        sentences.append(f"{measure.label}, median over all that was climbed: {', '.join(steps)}.")
    nothing = [RUNGS[step].name for step in worth_nothing(ladder, (E2E_MEAN, E2E_P99))]
    return [*sentences, *(f"Worth nothing that holds across what was climbed: {name}." for name in nothing)]


def ladder_data(ladder: Ladder) -> dict[str, Any]:
    """The JSON document: settings, rungs, every run, and what each step is worth."""
    settings = asdict(ladder.settings)
    settings["base"] = {name: str(value) if name == "fleet" else value for name, value in settings["base"].items()}
    return {
        "settings": settings,
        "rungs": [asdict(rung) for rung in RUNGS],
        "runs": [
            {
                "trace": cell.trace,
                "binds": cell.binds,
                "lengths": cell.lengths,
                "fleet": cell.fleet,
                "rung": run.policy,
                "seed": run.seed,
                **run.row,
            }
            for cell in ladder.cells
            for run in cell.runs.results
        ],
        "worth": [_worth_row(ladder, step, measure, binds, kind) for step, measure, binds, kind in _kinds(ladder)],
    }


def _kinds(ladder: Ladder) -> list[tuple[int, Measure, str, str]]:
    return [
        (step, measure, binds, kind)
        for step in range(1, len(RUNGS))
        for measure in (E2E_MEAN, E2E_P99, TTFT_MEAN, TTFT_P99, TOKENS)
        for binds in ladder.settings.binds
        for kind in ladder.settings.lengths
    ]


def _worth_row(ladder: Ladder, step: int, measure: Measure, binds: str, kind: str) -> dict[str, Any]:
    worth = ladder.worth(step, measure, binds, kind)
    return {
        "step": RUNGS[step].name,
        "measure": measure.path,
        "binds": binds,
        "lengths": kind,
        "median": finite(worth.middle),
        "low": finite(worth.low),
        "high": finite(worth.high),
        "verdict": worth.verdict,
    }


def _table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    return table
