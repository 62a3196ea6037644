"""The ladder as one self-contained HTML page that opens offline."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

from bidroute.experiments.ladder import RUNGS, Cell, Ladder, Worth, worth_nothing
from bidroute.experiments.measures import Measure
from bidroute.report.files import whole_file
from bidroute.report.ladder import (
    BIND_NAMES,
    E2E_MEAN,
    E2E_P99,
    TOKENS,
    TTFT_MEAN,
    TTFT_P99,
    cell_title,
    worth_text,
)
from bidroute.report.ladder_figures import climb_figure, path_figure
from bidroute.report.numbers import figure, spread_figure
from bidroute.report.pages import whole_page

SHOWN = (E2E_MEAN, E2E_P99, TTFT_MEAN, TTFT_P99, TOKENS)
_STRONGEST = 0.4  # a change of so much has the full colour


def write_ladder_html(ladder: Ladder, command: str, path: Path) -> None:
    """Write the page. Raises ConfigError when the file cannot be written."""
    page = ladder_page(ladder, command)
    with whole_file(path) as file:
        file.write(page)


def ladder_page(ladder: Ladder, command: str) -> str:
    """The whole page."""
    data = {
        "climbs": {measure.path: climb_figure(ladder, measure) for measure in SHOWN},
        "paths": {trace: path_figure(ladder, trace) for trace in ladder.settings.traces},
    }
    body = "\n".join([_opening(ladder), _climb(), _worths(ladder), _paths(ladder), _figures(ladder), _ending(command)])
    return whole_page("ladder", body, data, styles=["page.css", "ladder.css"], script="ladder.js")


def _opening(ladder: Ladder) -> str:
    whole = ", ".join(f"{measure.label} {_whole_climb(ladder, measure)}" for measure in (E2E_MEAN, E2E_P99, TTFT_MEAN))
    nothing = [RUNGS[step].name for step in worth_nothing(ladder, (E2E_MEAN, E2E_P99))]
    idle = f"Worth nothing that holds across what was climbed: {', '.join(nothing)}." if nothing else ""
    items = "".join(f"<li><b>{escape(rung.name)}</b> {escape(rung.what)}</li>" for rung in RUNGS)
    return (
        "<h1>bidroute ladder</h1>\n"
        f'<p class="headline">From dispatch on arrival to bid_price, one idea at a time: {escape(whole)}.</p>\n'
        f'<p class="losses">{escape(idle)}</p>\n<ol class="rungs">{items}</ol>'
    )


def _whole_climb(ladder: Ladder, measure: Measure) -> str:
    """The change from the first rung to the last, the median over all cells."""
    changes = sorted(
        last.median / first.median - 1.0
        for cell in ladder.cells
        if (first := cell.runs.spread(RUNGS[0].name, measure.path)).median > 0
        and math.isfinite((last := cell.runs.spread(RUNGS[-1].name, measure.path)).median)
    )
    return worth_text(changes[len(changes) // 2] if changes else math.nan)


def _climb() -> str:
    chips = "".join(
        f'<button class="chip" data-measure="{measure.path}" aria-pressed="false">{escape(measure.label)}</button>'
        for measure in SHOWN
    )
    return (
        "<h2>The climb</h2>\n"
        '<p class="note">Each figure relative to dispatch on arrival (×1), on a log scale: medians over the seeds, '
        "bars from the lowest seed to the highest. Below ×1 is better, but for tokens/s.</p>\n"
        f'<div class="chips">{chips}</div>\n<div class="card"><div id="climb"></div></div>'
    )


def _worths(ladder: Ladder) -> str:
    tables = "".join(_worth_table(ladder, measure) for measure in SHOWN)
    return (
        "<h2>What each step is worth</h2>\n"
        '<p class="note">Change against the rung below: the median over workloads and seeds, and from least to most. '
        "Blue is better, orange worse, no colour where fewer than three quarters agree or it is a tie.</p>\n"
        f"{tables}"
    )


def _worth_table(ladder: Ladder, measure: Measure) -> str:
    settings = ladder.settings
    kinds: list[tuple[str | None, str | None]] = [(b, kind) for b in settings.binds for kind in settings.lengths]
    kinds.append((None, None))
    names = [f"{BIND_NAMES[b]}<br>{kind}" if b and kind else "all" for b, kind in kinds]
    heads = "".join(f"<th>{name}</th>" for name in names)
    rows = [
        f"<tr><td>{escape(RUNGS[step].name)}</td>"
        + "".join(_worth_cell(ladder.worth(step, measure, *kind), measure) for kind in kinds)
        + "</tr>"
        for step in range(1, len(RUNGS))
    ]
    return (
        f'<div class="card scroll worth" data-measure="{measure.path}"><table><thead><tr>'
        f"<th>{escape(measure.label)}</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _worth_cell(worth: Worth, measure: Measure) -> str:
    if not math.isfinite(worth.middle):
        return "<td>–</td>"
    gain = worth.middle if measure.higher_is_better else -worth.middle
    strength = min(abs(gain) / _STRONGEST, 1.0) * 0.65 if worth.verdict else 0.0
    colour = "42, 100, 190" if gain > 0 else "224, 123, 57"
    spread = f"{worth_text(worth.low)} … {worth_text(worth.high)}"
    return (
        f'<td style="background: rgba({colour}, {strength:.2f})">{worth_text(worth.middle)}'
        f'<div class="spread">{spread}</div></td>'
    )


def _paths(ladder: Ladder) -> str:
    options = "".join(f'<option value="{escape(t)}">{escape(t)}</option>' for t in ladder.settings.traces)
    return (
        "<h2>Mean against tail</h2>\n"
        '<p class="note">The path from rung to rung, numbered as above; medians over the seeds, lower left is better. '
        f'Workload: <select id="path-trace">{options}</select></p>\n<div class="card"><div id="path"></div></div>'
    )


def _figures(ladder: Ladder) -> str:
    parts = [
        _figures_table([cell for cell in ladder.cells_of(binds) if cell.trace == trace])
        for trace in ladder.settings.traces
        for binds in ladder.settings.binds
    ]
    return f"<h2>All figures</h2>\n<details><summary>Tables</summary>{''.join(parts)}</details>"


def _figures_table(cells: list[Cell]) -> str:
    heads = "".join(
        f"<th>{cell.lengths}<br>{escape(measure.label)}, s</th>" for cell in cells for measure in (E2E_MEAN, E2E_P99)
    )
    rows = "".join(
        f"<tr><td>{escape(rung.name)}</td>"
        + "".join(_spread_cell(cell, rung.name, measure) for cell in cells for measure in (E2E_MEAN, E2E_P99))
        + "</tr>"
        for rung in RUNGS
    )
    return (
        f'<p class="note">{escape(cell_title(cells[0]))}</p><div class="card scroll"><table><thead><tr><th></th>{heads}'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _spread_cell(cell: Cell, rung: str, measure: Measure) -> str:
    spread = cell.runs.spread(rung, measure.path)
    return f'<td>{figure(spread.median)} <span class="spread">{spread_figure(spread)}</span></td>'


def _ending(command: str) -> str:
    return (
        f"<h2>Again</h2>\n<pre>{escape(command)}</pre>\n<footer>Every rung sees the same arrivals, and every run "
        "drains to its end. Where KV binds a worker has four times the slots that its KV fills; where slots bind, as "
        "many as that KV fills, and twice the KV.</footer>"
    )
