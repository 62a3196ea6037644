"""Azure's public LLM inference traces of 2023 and 2024."""

from __future__ import annotations

from typing import ClassVar

from bidroute.traces.base import ReadOptions
from bidroute.traces.csv_format import CsvFormat
from bidroute.traces.fields import TICKS_PER_S, clock_ticks


class AzureTrace(CsvFormat):
    """`TIMESTAMP,ContextTokens,GeneratedTokens`; the clock has up to 7 decimals, and in 2024 a time zone."""

    name: ClassVar[str] = "azure"
    time_column = "TIMESTAMP"
    prompt_column = "ContextTokens"
    output_column = "GeneratedTokens"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._first_ticks: int | None = None

    def time(self, text: str) -> float:
        """Seconds since the first row; whole ticks until then, as a float of today's date has only 7 good digits."""
        ticks = clock_ticks(text, self.time_column)
        if self._first_ticks is None:
            self._first_ticks = ticks
        return (ticks - self._first_ticks) / TICKS_PER_S
