"""The figures of the report as plain Plotly dictionaries (data and layout), small and rounded."""

from __future__ import annotations

from typing import Any

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.experiments.results import QUANTILES, Comparison, Timeline
from bidroute.experiments.verdict import FLOOR_S, SUBJECT
from bidroute.report.palette import ENGINE_COLOUR, FAINT, INK, KV_COLOUR, OTHER, REASON_COLOURS, SLOTS_COLOUR

Figure = dict[str, Any]
MAX_POINTS = 400


def distribution_figure(comparison: Comparison, attribute: str, title: str, colours: dict[str, str]) -> Figure:
    """CDF of a latency (`e2e_quantiles_s` or `ttft_quantiles_s`) for each policy, the median over seeds."""
    data = []
    for policy in comparison.policies:
        curves = np.stack([getattr(result, attribute) for result in comparison.of(policy)])
        seconds = np.maximum(np.median(curves, axis=0), FLOOR_S)
        data.append(_line(policy, seconds, 100.0 * QUANTILES, colours[policy], "%{y:.1f} % within %{x:.3g} s"))
    layout = base_layout(340, title)
    layout["xaxis"] |= {
        "type": "log",
        "title": {"text": "seconds (log scale)"},
        "dtick": "D2",
        "exponentformat": "none",
    }
    layout["yaxis"] |= {"title": {"text": "% of requests"}, "range": [0, 101]}
    return {"data": data, "layout": layout}


def tradeoff_figure(comparison: Comparison, key: str, title: str, colours: dict[str, str]) -> Figure:
    """Mean against p99 of `e2e_s` or `ttft_s`, a point per policy at the medians, and a faint one per seed."""
    data = []
    for policy in comparison.policies:
        mean, tail = comparison.values(policy, f"{key}.mean"), comparison.values(policy, f"{key}.p99")
        point: Figure = {
            "type": "scatter",
            "name": policy,
            "mode": "markers",
            "meta": policy,
            "hovertemplate": f"{policy}: mean %{{x}} s, p99 %{{y}} s<extra></extra>",
        }
        faint = {"color": colours[policy], "size": 5, "opacity": 0.5}
        strong = {"color": colours[policy], "size": 13 if policy == SUBJECT else 9}
        if len(mean) > 1:
            data.append({**point, "x": rounded(mean), "y": rounded(tail), "marker": faint})
        middle = {"x": [_rounded(float(np.median(mean)))], "y": [_rounded(float(np.median(tail)))], "marker": strong}
        data.append({**point, **middle})
    layout = base_layout(380, title)
    layout["xaxis"] |= {"title": {"text": "mean, seconds"}, "rangemode": "tozero"}
    layout["yaxis"] |= {"title": {"text": "p99, seconds"}, "rangemode": "tozero"}
    return {"data": data, "layout": layout}


def queue_figure(comparison: Comparison, colours: dict[str, str]) -> Figure:
    """Requests that wait (in the router and inside engines) over time, one line per policy, first seed."""
    data = []
    for policy in comparison.policies:
        timeline = comparison.of(policy)[0].timeline
        if timeline is not None:
            time_s, waiting = decimated(timeline.time_s, timeline.waiting + timeline.pending)
            data.append(_line(policy, time_s, waiting, colours[policy], "%{y:.0f} wait at %{x:.0f} s"))
    layout = base_layout(320, "Requests waiting, in the router and inside engines")
    layout["xaxis"] |= {"title": {"text": "time, seconds"}}
    layout["yaxis"] |= {"title": {"text": "requests"}, "rangemode": "tozero"}
    return {"data": data, "layout": layout}


def inside_figure(timeline: Timeline) -> Figure:
    """One policy over time: slots used and their price, KV used and its price, waiting requests by reason.

    Where iterations have a token budget, its price stands beside that of slots.
    """
    data = [
        _area("slots used", timeline, 100.0 * timeline.slots_used, SLOTS_COLOUR, "y", "%{y:.0f} % of slots used"),
        _area("KV used", timeline, 100.0 * timeline.kv_used, KV_COLOUR, "y3", "%{y:.0f} % of KV used"),
    ]
    if timeline.slot_price is not None and timeline.kv_price is not None:
        data.append(_price("price of slots", timeline, timeline.slot_price, "y2"))
        data.append(_price("price of KV", timeline, timeline.kv_price, "y4"))
    if timeline.token_price is not None:
        data.append(_price("price of iterations' tokens", timeline, timeline.token_price, "y2", "dot"))
    data += _reasons(timeline)
    return {"data": data, "layout": _inside_layout(_price_ceiling(timeline))}


def decimated(time_s: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """At most MAX_POINTS points: means over equal groups of neighbours; arrays of shape [points]."""
    group = -(-len(time_s) // MAX_POINTS)
    if group <= 1:
        return time_s, values
    starts = np.arange(0, len(time_s), group)
    counts = np.diff(np.append(starts, len(time_s)))
    return np.add.reduceat(time_s, starts) / counts, np.add.reduceat(values, starts) / counts


def _reasons(timeline: Timeline) -> list[Figure]:
    """Stacked areas: requests held in the router by reason, and those inside engines where there are any."""
    stacks = {f"held: {reason}": (held, REASON_COLOURS.get(reason, OTHER)) for reason, held in timeline.held.items()}
    if np.any(timeline.pending > 0):
        stacks["in an engine's queue"] = (timeline.pending, ENGINE_COLOUR)
    lines = []
    for label, (values, colour) in stacks.items():
        time_s, shown = decimated(timeline.time_s, values)
        lines.append(
            {
                **_line(label, time_s, shown, colour, "%{y:.0f}"),
                "stackgroup": "waiting",
                "fillcolor": colour + "cc",
                "line": {"width": 0},
                "yaxis": "y5",
                "showlegend": True,
            }
        )
    return lines


def _area(label: str, timeline: Timeline, values: FloatArray, colour: str, axis: str, hover: str) -> Figure:
    time_s, shown = decimated(timeline.time_s, values)
    return {
        **_line(label, time_s, shown, colour, hover),
        "fill": "tozeroy",
        "fillcolor": colour + "33",
        "line": {"width": 1, "color": colour},
        "yaxis": axis,
        "showlegend": True,
    }


def _price(label: str, timeline: Timeline, values: FloatArray, axis: str, dash: str = "solid") -> Figure:
    time_s, shown = decimated(timeline.time_s, values)
    line = _line(label, time_s, shown, INK, "%{y:.3g}")
    return {**line, "line": {**line["line"], "dash": dash}, "yaxis": axis, "showlegend": True}


def _price_ceiling(timeline: Timeline) -> float | None:
    """Where the price axes end, so that both resources compare and one spike does not flatten the rest."""
    if timeline.slot_price is None or timeline.kv_price is None:
        return None
    token_price = np.zeros(0) if timeline.token_price is None else timeline.token_price
    values = np.concatenate([timeline.slot_price, timeline.kv_price, token_price])
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) == 0:
        return 1.0
    return float(min(1.05 * np.max(values), 2.0 * np.quantile(values, 0.95)))


def _inside_layout(price_ceiling: float | None) -> Figure:
    """Three panels above one time axis; prices on the right-hand axes."""
    layout = base_layout(620, None)
    layout["margin"] = {"l": 64, "r": 92, "t": 16, "b": 80}
    layout["xaxis"] |= {"title": {"text": "time, seconds"}, "anchor": "y5"}
    panels = {"yaxis": ([0.72, 1.0], "slots used, %"), "yaxis3": ([0.38, 0.66], "KV used, %")}
    for name, (domain, title) in panels.items():
        layout[name] = {**_axis(), "domain": domain, "range": [0, 105], "title": {"text": title}}
    if price_ceiling is not None:
        for name, below, title in (
            ("yaxis2", "y", "price of all slots,<br>per period"),
            ("yaxis4", "y3", "price of all KV,<br>per period"),
        ):
            layout[name] = {
                "overlaying": below,
                "side": "right",
                "range": [0, price_ceiling],
                "showgrid": False,
                "tickmode": "auto",
                "tickformat": ".2~g",
                "nticks": 4,
                "title": {"text": title},
            }
    layout["yaxis5"] = {**_axis(), "domain": [0.0, 0.32], "rangemode": "tozero", "title": {"text": "waiting requests"}}
    layout["showlegend"] = True
    layout["legend"] = {"orientation": "h", "y": -0.13, "x": 0.0, "yanchor": "top"}
    layout["hovermode"] = "x unified"
    return layout


def _line(name: str, x: FloatArray, y: FloatArray, colour: str, hover: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": rounded(x),
        "y": rounded(y),
        "line": {"color": colour, "width": 3 if name == SUBJECT else 1.6},
        "hovertemplate": f"{hover}<extra>{name}</extra>",
        "meta": name,
        "showlegend": False,
    }


def base_layout(height: int, title: str | None) -> Figure:
    """Size, margins, font and axes that all figures of a page share."""
    layout: Figure = {
        "height": height,
        "margin": {"l": 58, "r": 16, "t": 44 if title else 12, "b": 48},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "showlegend": False,
        "legend": {"orientation": "h"},
        "xaxis": _axis(),
        "yaxis": _axis(),
        "hoverlabel": {"font": {"size": 12}},
    }
    if title:
        layout["title"] = {"text": title, "x": 0.0, "xref": "paper", "font": {"size": 14}}
    return layout


def _axis() -> Figure:
    return {"gridcolor": FAINT, "zeroline": False, "linecolor": "#c4cad1", "ticks": "outside", "tickcolor": "#c4cad1"}


def rounded(values: FloatArray) -> list[float | None]:
    """Four significant digits, None for what is not finite: enough to draw, small to store."""
    return [_rounded(value) for value in values.tolist()]


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
