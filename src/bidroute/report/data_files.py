"""The comparison as data: the JSON file, and one CSV row per request."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from bidroute.errors import ConfigError
from bidroute.experiments.results import Comparison, RequestColumns, Result
from bidroute.report.files import whole_file


def write_json(data: Any, path: Path) -> None:
    """Write plain data as strict JSON (no NaN). Raises ConfigError when the file cannot be written."""
    with whole_file(path) as file:
        json.dump(data, file, indent=1, allow_nan=False)
        file.write("\n")


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The JSON document: `scenario`, `results` (one row per policy and seed) and `notes`."""
    rows = [{"policy": result.policy, "seed": result.seed, **result.row} for result in comparison.results]
    return {"scenario": comparison.scenario, "results": rows, "notes": comparison.notes}


def write_per_request_csv(comparison: Comparison, path: Path) -> None:
    """One row per policy, seed and request. Times are seconds; empty where a request was refused."""
    with whole_file(path) as file:
        names = [field.name for field in fields(RequestColumns)]
        csv.writer(file, lineterminator="\n").writerow(["policy", "seed", "request", *names])
        for result in comparison.results:
            _write_requests(result, names, file)


def _write_requests(result: Result, names: list[str], file: TextIO) -> None:
    if result.requests is None:
        raise ConfigError("per-request times were not kept; compare with keep_requests=True")
    columns = [_texts(getattr(result.requests, name)) for name in names]
    start = f"{result.policy},{result.seed},"
    file.writelines(f"{start}{index},{','.join(row)}\n" for index, row in enumerate(zip(*columns, strict=True)))


def _texts(column: Any) -> list[str]:
    """Integers as they are, seconds to the microsecond, missing ones empty."""
    if column.dtype.kind == "i":
        return [str(value) for value in column.tolist()]
    return ["" if value != value else f"{value:.6f}" for value in column.tolist()]
