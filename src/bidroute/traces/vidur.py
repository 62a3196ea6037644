"""Traces as the Vidur simulator reads them; ServeGen samples are often stored like this too."""

from __future__ import annotations

from typing import ClassVar

from bidroute.traces.csv_format import CsvFormat


class VidurTrace(CsvFormat):
    """`arrived_at,num_prefill_tokens,num_decode_tokens`, times in seconds."""

    name: ClassVar[str] = "vidur"
    time_column = "arrived_at"
    prompt_column = "num_prefill_tokens"
    output_column = "num_decode_tokens"
