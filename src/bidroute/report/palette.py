"""Colours of the report: one per policy, strong for the subject, told apart without red against green."""

from __future__ import annotations

from bidroute.experiments.verdict import SUBJECT

SUBJECT_COLOUR = "#1f4e9c"
POLICY_COLOURS = (
    "#e07b39",
    "#2a9d8f",
    "#b5527e",
    "#8a6d3b",
    "#5aa9e6",
    "#7a9a3a",
    "#9b8bd0",
    "#c9a227",
    "#6c757d",
    "#d1495b",
    "#3f7d6e",
    "#a0a0a0",
)
REASON_COLOURS = {
    "price": "#1f4e9c",
    "slots": "#e07b39",
    "kv now": "#b5527e",
    "kv future": "#e3a6c4",
    "order": "#b8bec6",
    "faster device": "#3f7d6e",
}
SLOTS_COLOUR = "#e07b39"
KV_COLOUR = "#b5527e"
ENGINE_COLOUR = "#8b9099"  # waiting inside an engine
OTHER = "#777777"
INK = "#20262e"
FAINT = "#e6e9ed"


def policy_colours(policies: list[str]) -> dict[str, str]:
    """A colour for each policy, in the order given; the subject always has the same."""
    others = [policy for policy in policies if policy != SUBJECT]
    colours = {policy: POLICY_COLOURS[i % len(POLICY_COLOURS)] for i, policy in enumerate(others)}
    return {policy: colours.get(policy, SUBJECT_COLOUR) for policy in policies}
