"""The figures of the ladder's page as plain Plotly dictionaries: a panel per knowledge of lengths and what binds."""

from __future__ import annotations

from typing import Any

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.experiments.ladder import RUNGS, Cell, Ladder
from bidroute.experiments.measures import Measure
from bidroute.report.figures import rounded
from bidroute.report.ladder import BIND_NAMES
from bidroute.report.palette import FAINT, INK, POLICY_COLOURS, SUBJECT_COLOUR

Figure = dict[str, Any]
SHORT_NAMES = ("dispatch", "FIFO", "footprint", "+ safety", "+ prices", "+ forecast", "+ tail")
LENGTH_NAMES = {"known": "lengths known", "noisy": "predicted with noise", "none": "no lengths"}
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
_GAP, _ROW_GAP = 0.045, 0.15
_STEP_COLOURS = ("#b3bac2", "#94a0ad", "#e3b27a", "#e07b39", "#8fb0dd", "#5583c4", SUBJECT_COLOUR)


def workload_colours(ladder: Ladder) -> dict[str, str]:
    """A colour for each workload."""
    return {trace: POLICY_COLOURS[place % len(POLICY_COLOURS)] for place, trace in enumerate(ladder.settings.traces)}


def climb_figure(ladder: Ladder, measure: Measure) -> Figure:
    """One figure relative to dispatch on arrival, rung by rung: a line per workload, bars from seed to seed."""
    colours, panels = workload_colours(ladder), _panels(ladder)
    data: list[Figure] = []
    for place, (binds, kind) in enumerate(panels):
        cells = ladder.cells_of(binds, kind)
        data += [_climb_line(cell, measure, place, colours[cell.trace]) for cell in cells]
    layout = _layout(ladder, panels)
    ticks = {"tickvals": list(range(len(RUNGS))), "ticktext": list(SHORT_NAMES), "tickangle": -38}
    for place in range(len(panels)):
        layout[f"xaxis{_number(place)}"] |= {**ticks, "range": [-0.35, len(RUNGS) - 0.65]}
        layout[f"yaxis{_number(place)}"] |= {
            "type": "log",
            "tickvals": list(_RATIOS),
            "ticktext": [f"×{ratio:g}" for ratio in _RATIOS],
        }
        if place:
            layout[f"yaxis{_number(place)}"]["matches"] = "y"
    return {"data": data, "layout": layout}


def _climb_line(cell: Cell, measure: Measure, place: int, colour: str) -> Figure:
    ratios = _ratios(cell, measure)
    middle, low, high = np.median(ratios, axis=1), ratios.min(axis=1), ratios.max(axis=1)
    values = [cell.runs.spread(rung.name, measure.path).median for rung in RUNGS]
    unit = measure.head.split(", ")[-1] if ", " in measure.head else ""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": cell.trace.removeprefix("builtin:"),
        "x": list(range(len(RUNGS))),
        "y": rounded(middle),
        "error_y": {
            "type": "data",
            "array": rounded(high - middle),
            "arrayminus": rounded(middle - low),
            "thickness": 1,
            "width": 2,
            "color": colour,
        },
        "text": [f"{rung.name}: {value:.4g} {unit}" for rung, value in zip(RUNGS, values, strict=True)],
        "hovertemplate": "%{text} (×%{y:.3g})",
        "line": {"color": colour, "width": 2},
        "marker": {"size": 6},
        "xaxis": f"x{_number(place)}",
        "yaxis": f"y{_number(place)}",
        "legendgroup": cell.trace,
        "showlegend": place == 0,
    }


def _ratios(cell: Cell, measure: Measure) -> FloatArray:
    """The figure of each rung over that of the first, float64[rungs, seeds]."""
    values = np.stack([cell.runs.values(rung.name, measure.path) for rung in RUNGS])
    ratios: FloatArray = np.maximum(values, 1e-3) / np.maximum(values[0], 1e-3)
    return ratios


def path_figure(ladder: Ladder, trace: str) -> Figure:
    """E2E mean against p99 of one workload, from rung to rung: lower left is better."""
    panels, data = _panels(ladder), []
    for place, (binds, kind) in enumerate(panels):
        data += [_path_line(cell, place) for cell in ladder.cells_of(binds, kind) if cell.trace == trace]
    layout = _layout(ladder, panels)
    layout["showlegend"] = False
    for place in range(len(panels)):
        axes = layout[f"xaxis{_number(place)}"], layout[f"yaxis{_number(place)}"]
        for axis, title in zip(axes, ("E2E mean, s", "E2E p99, s"), strict=True):
            axis |= {"title": {"text": title, "font": {"size": 11}, "standoff": 4}, "nticks": 6}
    return {"data": data, "layout": layout}


def _path_line(cell: Cell, place: int) -> Figure:
    means, tails = (
        np.array([cell.runs.spread(rung.name, path).median for rung in RUNGS]) for path in ("e2e_s.mean", "e2e_s.p99")
    )
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "x": rounded(means),
        "y": rounded(tails),
        "text": [str(number) for number in range(1, len(RUNGS) + 1)],
        "textfont": {"size": 10, "color": "white"},
        "customdata": [rung.name for rung in RUNGS],
        "hovertemplate": "%{text} %{customdata}: mean %{x} s, p99 %{y} s<extra></extra>",
        "line": {"color": "#c4cad1", "width": 1.5},
        "marker": {"size": 17, "color": list(_STEP_COLOURS), "line": {"color": "white", "width": 1}},
        "xaxis": f"x{_number(place)}",
        "yaxis": f"y{_number(place)}",
    }


def _panels(ladder: Ladder) -> list[tuple[str, str]]:
    return [(binds, kind) for binds in ladder.settings.binds for kind in ladder.settings.lengths]


def _layout(ladder: Ladder, panels: list[tuple[str, str]]) -> Figure:
    """A grid of panels: what binds from top to bottom, what is known of lengths from left to right."""
    rows, columns = len(ladder.settings.binds), len(ladder.settings.lengths)
    layout: Figure = {
        "height": 120 + 300 * rows,
        "margin": {"l": 58, "r": 16, "t": 64, "b": 84},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "legend": {"orientation": "h", "x": 0.0, "y": 1.05, "yanchor": "bottom"},
        "hoverlabel": {"font": {"size": 12}},
        "annotations": [],
    }
    width, height = (1.0 - _GAP * (columns - 1)) / columns, (1.0 - _ROW_GAP * (rows - 1)) / rows
    for place, (binds, kind) in enumerate(panels):
        row, column = divmod(place, columns)
        left, bottom = column * (width + _GAP), 1.0 - row * (height + _ROW_GAP) - height
        number = _number(place)
        layout[f"xaxis{number}"] = {**_axis(), "domain": [left, left + width], "anchor": f"y{number}"}
        layout[f"yaxis{number}"] = {**_axis(), "domain": [bottom, bottom + height], "anchor": f"x{number}"}
        layout["annotations"].append(
            {
                "text": f"<b>{BIND_NAMES[binds]}</b>, {LENGTH_NAMES[kind]}",
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": left,
                "y": bottom + height,
                "xanchor": "left",
                "yanchor": "bottom",
                "font": {"size": 12.5},
            }
        )
    return layout


def _number(place: int) -> str:
    """How Plotly counts axes: x, x2, x3."""
    return "" if place == 0 else str(place + 1)


def _axis() -> Figure:
    return {"gridcolor": FAINT, "zeroline": False, "linecolor": "#c4cad1", "ticks": "outside", "tickcolor": "#c4cad1"}
