"""The one entry point: a workload from a trace file or a built-in generator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from bidroute.errors import ConfigError
from bidroute.traces.base import ReadOptions
from bidroute.traces.formats import FORMATS, named_format
from bidroute.traces.reading import read_file
from bidroute.traces.synthetic import DEFAULT_REQUESTS, build_workload
from bidroute.traces.workload import Workload

BUILTIN_PREFIX = "builtin:"


def load_trace(
    source: str | Path,
    *,
    requests: int | None = None,
    skip_bad_rows: bool = False,
    seed: int = 0,
    format_name: str | None = None,
    columns: Mapping[str, str] | None = None,
    rate_per_s: float = 10.0,
    tokenizer: str | Path | None = None,
) -> Workload:
    """The workload of `FILE`, `FORMAT:FILE` or `builtin:NAME`.

    `requests` limits a file to its first ones, and is how many a built-in makes (10 000 if None). `seed` drives
    built-ins and the arrivals of traces without times, which come at `rate_per_s`. `format_name` overrides the
    detection of the format; `columns` maps `time`, `prompt`, `output` to column names of a generic CSV;
    `tokenizer` is a `tokenizer.json` that counts the tokens of texts. Raises TraceError for what cannot be
    read, ConfigError for wrong settings.
    """
    if requests is not None and requests < 1:
        raise ConfigError(f"requests: {requests}; expected 1 or more")
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise ConfigError(f"rate_per_s: {rate_per_s}; expected a positive number of requests per second")
    unknown = set(columns or {}) - {"time", "prompt", "output"}
    if unknown:
        raise ConfigError(f"columns: {', '.join(sorted(unknown))}; expected time, prompt, output")
    text = str(source)
    if not text.strip():
        raise ConfigError("trace: empty; expected a trace file or builtin:NAME")
    if text.startswith(BUILTIN_PREFIX):
        return build_workload(text.removeprefix(BUILTIN_PREFIX), requests or DEFAULT_REQUESTS, seed)
    prefix, colon, rest = text.partition(":")
    if colon and prefix in FORMATS and format_name is None and not Path(text).exists():
        format_name, text = prefix, rest
        if not rest.strip():
            raise ConfigError(f"trace {f'{prefix}:'!r}: no file after the format; expected {prefix}:FILE")
    kind = named_format(format_name) if format_name is not None else (named_format("csv") if columns else None)
    options = ReadOptions(columns or {}, rate_per_s, seed, None if tokenizer is None else Path(tokenizer))
    return read_file(Path(text), options, kind=kind, requests=requests, skip_bad_rows=skip_bad_rows)
