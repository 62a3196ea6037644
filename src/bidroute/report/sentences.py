"""The sentences that open every report: the scenario and its load, and who wins against whom."""

from __future__ import annotations

from typing import Any

from bidroute.experiments.results import Comparison
from bidroute.experiments.verdict import Change, Verdict
from bidroute.report.numbers import change_text


def scenario_sentence(comparison: Comparison) -> str:
    """What was run, in one sentence: trace, requests, fleet, load, lengths, seeds."""
    return scenario_phrase(comparison.scenario)


def scenario_phrase(scenario: dict[str, Any]) -> str:
    """The same from the scenario as data (`experiments.describe`)."""
    workload, load = scenario["workload"], scenario["load"]
    seeds = len(scenario["seeds"])
    rate, share = workload["requests_per_s"], load["load"]  # None where all arrive at once
    arrivals = "all at once" if rate is None else f"{rate:.3g} requests/s"
    loaded = "" if share is None else f"load {share:.2f} of the fleet's estimated capacity, "
    count = workload["requests"]
    return (
        f"{count} request{'s' if count > 1 else ''} of {scenario['trace']} at ×{workload['speedup']:.4g} "
        f"({arrivals}) on {fleet_phrase(scenario['fleet'])}, mode {scenario['mode']}, "
        f"lengths {scenario['lengths']}; {loaded}{load['binding']} binds; {seeds} seed{'s' if seeds > 1 else ''}."
    )


def fleet_phrase(fleet: list[dict[str, Any]]) -> str:
    """`4 devices (128 slots, 50000 KV tokens)`, or the groups of an unlike fleet."""
    groups = [f"{group['count']} × {group['batch_slots']} slots, {group['kv_tokens']} KV tokens" for group in fleet]
    count = sum(group["count"] for group in fleet)
    inside = groups[0].split(" × ", 1)[1] if len(groups) == 1 else "; ".join(groups)
    return f"{count} device{'s' if count > 1 else ''} ({inside})"


def verdict_sentence(verdict: Verdict) -> str:
    """Who wins against the strongest other policy, on what and by how much, and where it loses."""
    start = f"{verdict.subject} against {verdict.strongest}, the strongest other policy here"
    won = [change for change in verdict.changes if change.outcome > 0]
    lost = [change for change in verdict.changes if change.outcome < 0]
    parts = []
    if won:
        parts.append("better on " + ", ".join(_phrase(change) for change in won))
    if lost:
        parts.append("worse on " + ", ".join(_phrase(change) for change in lost))
    if not parts:
        parts.append("no difference that holds for every seed")
    return f"{start}: {'; '.join(parts)}."


def losses_sentence(verdict: Verdict) -> str:
    """Where another policy than the strongest beats the subject; empty where none does."""
    losses = [change for change in verdict.losses if change.other != verdict.strongest]
    if not losses:
        return ""
    named = ", ".join(f"{_phrase(change)} of {change.other}" for change in losses)
    return f"Elsewhere it is also behind on {named}."


def _phrase(change: Change) -> str:
    return f"{change.measure.label} {change_text(change)}"
