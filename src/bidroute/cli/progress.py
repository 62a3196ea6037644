"""A progress bar on stderr while runs are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bidroute.experiments import Progress as OnProgress


@contextmanager
def progress_bar(what: str) -> Iterator[OnProgress]:
    """Show a bar until the block ends; yields the function to call as runs end. Nothing is left on the screen."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    with bar:
        row = bar.add_task(f"{what} (the first run on a machine compiles for a minute)", total=None)

        def on_progress(done: int, total: int, label: str) -> None:
            bar.update(row, completed=done, total=total, description=f"{what}: {label}")

        yield on_progress
