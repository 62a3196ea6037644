"""How numbers read in tables and pages: few digits, the same precision for a figure and its spread."""

from __future__ import annotations

import math

from bidroute.experiments.results import Spread
from bidroute.experiments.verdict import Change

MISSING = "–"


def decimals(value: float) -> int:
    """Decimals that leave about three digits of a figure."""
    size = abs(value)
    if size >= 99.95 or size == 0.0:
        return 0
    if size >= 9.995:
        return 1
    return 2 if size >= 0.0995 else 3


def figure(value: float) -> str:
    """A number with about three digits; a dash for a figure that does not exist."""
    if not math.isfinite(value):
        return MISSING
    text = f"{value:.{decimals(value)}f}"
    return text if float(text) else text.removeprefix("-")  # no minus before a zero


def spread_figure(spread: Spread) -> str:
    """`±half-range` with the decimals of the median and no leading zero; empty where that leaves nothing to see."""
    text = f"{spread.half_range:.{decimals(spread.median)}f}" if math.isfinite(spread.half_range) else "0"
    return f"±{text}".replace("±0.", "±.") if float(text) > 0 else ""


def percent(value: float) -> str:
    """A relative change such as `−14 %`, with a decimal where it is small, or `×12` where it is huge."""
    if value >= 4.0:
        return f"×{value + 1.0:.0f}"
    places = 0 if abs(value) >= 0.0995 else 1
    return f"{100.0 * value:+.{places}f}\N{NO-BREAK SPACE}%".replace("-", "−")


def change_text(change: Change) -> str:
    """`−14 %`, or the plain difference where a ratio makes no sense (from zero)."""
    if math.isfinite(change.relative):
        return percent(change.relative)
    return "level" if change.absolute == 0 else f"{change.absolute:+.0f}".replace("-", "−")
