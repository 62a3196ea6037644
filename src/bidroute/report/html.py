"""The comparison as one self-contained HTML page that opens offline."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from bidroute.experiments.results import Comparison
from bidroute.experiments.verdict import SUBJECT, Change, Verdict, judge
from bidroute.report.figures import distribution_figure, inside_figure, queue_figure, tradeoff_figure
from bidroute.report.files import whole_file
from bidroute.report.numbers import change_text, figure, percent, spread_figure
from bidroute.report.pages import whole_page
from bidroute.report.palette import policy_colours
from bidroute.report.sentences import losses_sentence, scenario_sentence, verdict_sentence
from bidroute.report.tables import best_policies, ranked

SHOWN_AT_FIRST = 7  # policies drawn before the reader asks for more


def write_html(comparison: Comparison, path: Path) -> None:
    """Write the report. Raises ConfigError when the file cannot be written."""
    page = report_page(comparison)
    with whole_file(path) as file:
        file.write(page)


def report_page(comparison: Comparison) -> str:
    """The whole page, with plotly.js, style and data inside."""
    verdict = judge(comparison)
    order = ranked(comparison)
    colours = policy_colours(order)
    data = _page_data(comparison, order, verdict, colours)
    body = "\n".join(
        [
            _opening(comparison, verdict),
            _table(comparison, colours),
            _distributions(order, colours),
            _inside(comparison, order),
            settings_section(comparison.scenario, _FOOTER),
        ]
    )
    return whole_page(str(comparison.scenario["trace"]), body, data, styles=["page.css"], script="page.js")


def _page_data(
    comparison: Comparison, order: list[str], verdict: Verdict | None, colours: dict[str, str]
) -> dict[str, Any]:
    """What the page's script draws: the figures of all policies, and one figure per policy for the inside view."""
    named = [verdict.subject, verdict.strongest] if verdict else []
    timelines = {policy: comparison.of(policy)[0].timeline for policy in order}
    return {
        "shown": list(dict.fromkeys([*named, *order]))[:SHOWN_AT_FIRST],
        "figures": {
            "e2e-cdf": distribution_figure(comparison, "e2e_quantiles_s", "End-to-end latency", colours),
            "ttft-cdf": distribution_figure(comparison, "ttft_quantiles_s", "Time to first token", colours),
            "e2e-tradeoff": tradeoff_figure(comparison, "e2e_s", "End-to-end latency: mean against p99", colours),
            "ttft-tradeoff": tradeoff_figure(comparison, "ttft_s", "Time to first token: mean against p99", colours),
            "queue": queue_figure(comparison, colours),
        },
        "inside": {name: inside_figure(timeline) for name, timeline in timelines.items() if timeline is not None},
    }


def _opening(comparison: Comparison, verdict: Verdict | None) -> str:
    if verdict is None:
        headline, losses, cards = "One policy alone: nothing to compare it with.", "", ""
    else:
        measurable = [change for change in verdict.changes if math.isfinite(change.absolute)]
        headline, losses = verdict_sentence(verdict), losses_sentence(verdict)
        cards = f'<div class="changes">{"".join(map(_card, measurable))}</div>'
    notes = "".join(f'<p class="note">Note: {escape(note)}</p>' for note in comparison.notes)
    return (
        f'<h1>bidroute compare</h1>\n<p class="headline">{escape(headline)}</p>\n'
        f'<p class="losses">{escape(losses)}</p>\n'
        f'<p class="scenario">{escape(scenario_sentence(comparison))}</p>\n{notes}{cards}'
    )


def _card(change: Change) -> str:
    """One figure of the verdict: the change against the strongest other policy, and its range over the seeds."""
    kind = {1: "win", -1: "loss"}.get(change.outcome, "level")
    seeds = "" if change.low == change.high else f"{percent(change.low)} to {percent(change.high)}"
    if not math.isfinite(change.relative):
        seeds = ""
    label = change.measure.label
    return (
        f'<div class="card change {kind}"><div class="label">{escape(label)}</div>'
        f'<div class="value">{escape(change_text(change))}</div>'
        f'<div class="range">{escape(seeds) or "&nbsp;"}</div></div>'
    )


def _table(comparison: Comparison, colours: dict[str, str]) -> str:
    winners = {measure.label: best_policies(comparison, measure) for measure in comparison.measures}
    heads = "".join(f"<th>{escape(measure.head).replace(chr(10), '<br>')}</th>" for measure in comparison.measures)
    rows = []
    for policy in ranked(comparison):
        cells = "".join(
            f'<td class="{"best" if policy in winners[measure.label] else ""}">'
            f"{_spread_cell(comparison, policy, measure.path)}</td>"
            for measure in comparison.measures
        )
        name = f'<td><span class="dot" style="background:{colours[policy]}"></span>{escape(policy)}</td>'
        rows.append(f'<tr class="{"subject" if policy == SUBJECT else ""}">{name}{cells}</tr>')
    return (
        "<h2>All policies</h2>\n"
        '<p class="note">Median over the seeds ± half of the range; best of each column in bold. Every policy saw the '
        "same arrivals. Sorted by latency (mean and p99 of E2E and TTFT).</p>\n"
        f'<div class="card scroll"><table><thead><tr><th>policy</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _spread_cell(comparison: Comparison, policy: str, path: str) -> str:
    spread = comparison.spread(policy, path)
    return f'{figure(spread.median)} <span class="spread">{spread_figure(spread)}</span>'


def _distributions(order: list[str], colours: dict[str, str]) -> str:
    chips = "".join(
        f'<button class="chip" data-policy="{escape(policy)}" aria-pressed="true">'
        f'<span class="dot" style="background:{colours[policy]}"></span>{escape(policy)}</button>'
        for policy in order
    )
    return (
        "<h2>Distributions and trade-offs</h2>\n"
        '<p class="note">Click a policy to show or hide it in every figure below. Distributions are medians over the '
        "seeds; in mean against p99, a large dot is the median and small dots are single seeds; lower left is better. "
        "Waiting over time is of the first seed.</p>\n"
        f'<div class="chips">{chips}</div>\n'
        '<div class="pair"><div class="card"><div id="e2e-cdf"></div></div>'
        '<div class="card"><div id="ttft-cdf"></div></div></div>\n'
        '<div class="pair below"><div class="card"><div id="e2e-tradeoff"></div></div>'
        '<div class="card"><div id="ttft-tradeoff"></div></div></div>\n'
        '<div class="card below"><div id="queue"></div></div>'
    )


def _inside(comparison: Comparison, order: list[str]) -> str:
    recorded = [policy for policy in order if comparison.of(policy)[0].timeline is not None]
    if not recorded:
        return ""
    first = SUBJECT if SUBJECT in recorded else recorded[0]
    options = "".join(
        f'<option{" selected" if policy == first else ""} value="{escape(policy)}">{escape(policy)}</option>'
        for policy in recorded
    )
    return (
        "<h2>Inside one policy</h2>\n"
        '<p class="note">Utilisation of batch slots and of KV cache next to their prices (near future, in reward '
        "units for all slots or all KV of a device, mean over the devices; only price-based policies have any), and "
        "why requests waited. "
        f'First seed. Policy: <select id="inside-policy">{options}</select></p>\n'
        '<div class="card"><div id="inside"></div></div>'
    )


_FOOTER = (
    "Runs drain to the end: no request is cut off. Percentages are changes against the strongest other policy, seed by "
    "seed; a win or a loss is called one only if every seed agrees."
)


def settings_section(scenario: dict[str, Any], footer: str) -> str:
    """How to get the page again: the command, all settings as resolved, and a closing remark."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in _flat(scenario))
    command = scenario.get("command")
    again = f"<pre>{escape(str(command))}</pre>" if command else ""
    return (
        f"<h2>The scenario</h2>\n{again}\n"
        f'<div class="card"><dl class="settings">{rows}</dl></div>\n'
        f"<footer>{escape(footer)}</footer>"
    )


def _flat(data: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as `name: value` rows."""
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += _flat(value, f"{name}: ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, item in enumerate(value):
                rows += _flat(item, f"{name} {index + 1}: ")
        elif value is not None and key != "command":
            rows.append((name, ", ".join(map(str, value)) if isinstance(value, list) else _plain(value)))
    return rows


def _plain(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
