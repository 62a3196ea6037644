"""The ladder as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from bidroute.experiments.ladder import Ladder


def write_ladder_html(ladder: Ladder, command: str, path: Path) -> None:
    """Write it."""
