"""The tables of docs/vidur.md, between its markers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.results_vidur.experiments import Case
from tools.results_vidur.running import Row


def write_tables(rows: Mapping[Case, Row], page: Path) -> None:
    """Replace the tables."""
