"""The sweep as one self-contained HTML page: any two measures against each other, presets and baselines marked."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from bidroute.experiments.frontier import FRONT_MEASURES, Outcome, Sweep, preset_standings
from bidroute.experiments.frontier.candidates import BASELINE, FOUND, PRESET
from bidroute.experiments.measures import Measure
from bidroute.report.figures import base_layout
from bidroute.report.files import whole_file
from bidroute.report.frontier_tables import front_sentence
from bidroute.report.html import settings_section
from bidroute.report.numbers import figure, percent, spread_figure
from bidroute.report.pages import whole_page
from bidroute.report.palette import SUBJECT_COLOUR
from bidroute.report.sentences import scenario_phrase

COLOURS = {"front": "#8b9099", "beaten": "#b9c2cd", "found": "#5aa9e6", "preset": SUBJECT_COLOUR, "baseline": "#c05a1c"}
_KINDS = {PRESET: "preset", FOUND: "found", BASELINE: "other policy"}


def write_sweep_html(sweep: Sweep, path: Path) -> None:
    """Write the page. Raises ConfigError when the file cannot be written."""
    page = sweep_page(sweep)
    with whole_file(path) as file:
        file.write(page)


def sweep_page(sweep: Sweep) -> str:
    """The whole page, with plotly.js, style and data inside."""
    body = "\n".join(
        [_opening(sweep), _chart(), _standings(sweep), _table(sweep), settings_section(sweep.scenario, _FOOTER)]
    )
    title = f"sweep: {sweep.scenario['trace']}"
    return whole_page(title, body, _data(sweep), styles=["page.css"], script="frontier.js")


_FOOTER = (
    "Every point saw the same arrivals, and every run drains to its end. Figures are medians over the seeds. A point "
    "is on the front when no other is as good on all five measures and better on one."
)


def _opening(sweep: Sweep) -> str:
    return (
        f'<h1>bidroute sweep</h1>\n<p class="headline">{escape(front_sentence(sweep))}</p>\n'
        f'<p class="scenario">{escape(scenario_phrase(sweep.scenario))}</p>'
    )


def _chart() -> str:
    choices = "".join(
        f'<label>{name} <select id="{name}-measure">'
        + "".join(
            f'<option value="{measure.path}"{" selected" if place == chosen else ""}>{escape(measure.label)}</option>'
            for place, measure in enumerate(FRONT_MEASURES)
        )
        + "</select></label> "
        for name, chosen in (("x", 0), ("y", 1))
    )
    return (
        '<p class="note">Choose two measures; the dotted line is the front of these two alone. Hover for the settings, '
        "click a point or a row for the command that runs it.</p>\n"
        f'<p class="note">{choices}<label><input type="checkbox" id="log"> log scales</label></p>\n'
        '<div class="card"><div id="front"></div></div>\n<pre id="point-detail">click a point</pre>'
    )


def _standings(sweep: Sweep) -> str:
    rows = []
    for one in preset_standings(sweep):
        beaten = "nothing" if one.dominated_by is None else one.dominated_by.candidate.label
        cells = one.measure.label, figure(one.value), figure(one.best_value), percent(one.behind).replace("+", "")
        rows.append(
            f"<tr><td>{escape(one.preset.candidate.label)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}"
            f'<td class="long">{escape(one.best.candidate.label)}</td><td class="long">{escape(beaten)}</td></tr>'
        )
    heads = "".join(
        f"<th>{head}</th>"
        for head in (
            "preset",
            "its goal",
            "reached",
            "best found",
            "behind",
            "best found with",
            "beaten on all five by",
        )
    )
    return (
        "<h2>The presets by their own goals</h2>\n"
        f'<div class="card scroll"><table class="wraps"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
    )


def _table(sweep: Sweep) -> str:
    keys = {one.candidate.key for one in sweep.front}
    rows = []
    for index, outcome in enumerate(_ordered(sweep)):
        on_front = outcome.candidate.key in keys
        if not on_front and outcome.candidate.kind == FOUND:
            continue
        cells = "".join(f"<td>{_cell(outcome, measure)}</td>" for measure in FRONT_MEASURES)
        kind = outcome.candidate.kind
        colour = COLOURS[kind]
        rows.append(
            f'<tr data-point="{index}"><td><span class="dot" style="background:{colour}"></span>'
            f"{escape(outcome.candidate.label)}</td><td>{_KINDS[kind]}</td>{cells}"
            f"<td>{'●' if on_front else ''}</td></tr>"
        )
    heads = "".join(f"<th>{escape(measure.head).replace(chr(10), '<br>')}</th>" for measure in FRONT_MEASURES)
    return (
        "<h2>The front, the presets and the other policies</h2>\n"
        '<p class="note">Median over the seeds ± half of the range, smallest E2E mean first.</p>\n'
        '<div class="card scroll"><table class="wraps"><thead><tr><th>setting</th><th>kind</th>'
        f"{heads}<th>on the<br>front</th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(outcome: Outcome, measure: Measure) -> str:
    spread = outcome.spread(measure.path)
    return f'{figure(spread.median)} <span class="spread">{spread_figure(spread)}</span>'


def _ordered(sweep: Sweep) -> list[Outcome]:
    return sorted(sweep.outcomes, key=lambda one: one.median("e2e_s.mean"))


def _data(sweep: Sweep) -> dict[str, Any]:
    """What the page's script draws."""
    keys = {one.candidate.key for one in sweep.front}
    layout = base_layout(520, None)
    layout["showlegend"] = True
    layout["legend"] = {"orientation": "h", "y": -0.16, "x": 0.0, "yanchor": "top"}
    layout["margin"] |= {"b": 90, "r": 90}
    layout["hovermode"] = "closest"
    return {
        "colours": COLOURS,
        "layout": layout,
        "measures": [
            {
                "path": measure.path,
                "label": measure.label,
                "axis": measure.head.replace("\n", " "),
                "higher": measure.higher_is_better,
            }
            for measure in FRONT_MEASURES
        ],
        "points": [_point(index, one, one.candidate.key in keys) for index, one in enumerate(_ordered(sweep))],
    }


def _point(index: int, outcome: Outcome, on_front: bool) -> dict[str, Any]:
    candidate = outcome.candidate
    medians = {measure.path: outcome.median(measure.path) for measure in FRONT_MEASURES}
    return {
        "index": index,
        "kind": candidate.kind,
        "short": candidate.label,
        "html": escape(candidate.label).replace(" ", "<br>") if candidate.kind == FOUND else escape(candidate.label),
        "onFront": on_front,
        "figures": {path: value if math.isfinite(value) else None for path, value in medians.items()},
        "shown": {path: figure(value) for path, value in medians.items()},
        "command": f"bidroute compare {candidate.options}",
    }
