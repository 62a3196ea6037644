"""BurstGPT: requests to a university's chat service over months."""

from __future__ import annotations

from typing import ClassVar

from bidroute.traces.base import Row
from bidroute.traces.csv_format import CsvFormat


class BurstGptTrace(CsvFormat):
    """`Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, times in seconds.

    A request with 0 response tokens failed; it is a bad row, so that failures are never served in silence.
    """

    name: ClassVar[str] = "burstgpt"
    time_column = "Timestamp"
    prompt_column = "Request tokens"
    output_column = "Response tokens"

    def row(self, record: list[str]) -> Row:
        """The three fields; failures are called so."""
        output_at = self._indexes[2]
        if len(record) > output_at and record[output_at].strip() == "0":
            raise ValueError("Response tokens is 0, so the request failed; skip bad rows to leave such requests out")
        return super().row(record)
