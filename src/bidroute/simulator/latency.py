"""Latency models: how long one decode iteration and one prefill take.

A model is a name and one float64 array that the kernels evaluate; times inside are nanoseconds.

    decode   affine [0, minimum, a, b, c]                     time = a + b·batch + c·kv_tokens
             table  [1, minimum, n, m, batch[n], kv[m], time[n, m]]   bilinear, extended by its outermost lines
    prefill  affine [0, p0, p1]                               time = p0 + p1·new_tokens
             table  [1, m, tokens[m], time[m]]                piecewise linear, extended likewise
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.simulator.latency_kernels import AFFINE, TABLE, decode_ns, prefill_ns

NS_PER_S = 1e9
NS_PER_MS = 1e6
LONGEST_S = 1000.0  # of any coefficient
_DATA = files("bidroute.simulator") / "data"


@dataclass(frozen=True, slots=True, eq=False)
class DecodeLatency:
    """One decode iteration by batch size and KV tokens; build it with the functions of this module."""

    name: str
    packed: FloatArray

    def seconds(self, batch: int, kv_tokens: int) -> float:
        """Time of one iteration of `batch` requests that hold `kv_tokens` between them."""
        return float(decode_ns(self.packed, 0, batch, kv_tokens)) / NS_PER_S


@dataclass(frozen=True, slots=True, eq=False)
class PrefillLatency:
    """One prefill by new prompt tokens; build it with the functions of this module."""

    name: str
    packed: FloatArray

    def seconds(self, new_tokens: int) -> float:
        """Time to process `new_tokens` prompt tokens in one pass."""
        return float(prefill_ns(self.packed, 0, new_tokens)) / NS_PER_S


def affine_decode(a_s: float, b_s: float, c_s: float, *, minimum_s: float = 0.0) -> DecodeLatency:
    """`a_s + b_s·batch + c_s·kv_tokens` seconds, at least `minimum_s`. Raises ConfigError on NaN or a negative."""
    name = f"affine:{a_s:g},{b_s:g},{c_s:g}"
    _require_durations(name, (a_s, b_s, c_s, minimum_s))
    return DecodeLatency(name, np.array([AFFINE, minimum_s * NS_PER_S, a_s * NS_PER_S, b_s * NS_PER_S, c_s * NS_PER_S]))


def affine_prefill(p0_s: float, p1_s: float) -> PrefillLatency:
    """`p0_s + p1_s·new_tokens` seconds. Raises ConfigError on NaN or a negative."""
    name = f"affine:{p0_s:g},{p1_s:g}"
    _require_durations(name, (p0_s, p1_s))
    return PrefillLatency(name, np.array([AFFINE, p0_s * NS_PER_S, p1_s * NS_PER_S]))


def table_decode(name: str, rows: dict[int, tuple[FloatArray, FloatArray]], *, minimum_s: float = 0.0) -> DecodeLatency:
    """A table of lines: batch size → (kv_tokens[m], seconds[m]), at least two batch sizes of two points each.

    All rows are brought to the union of their kv_tokens, where interpolation along and between them stays exact.
    """
    batches = sorted(rows)
    if len(batches) < 2 or any(len(rows[batch][0]) < 2 for batch in batches):
        raise ConfigError(f"latency table {name}: expected two batch sizes or more with two points or more each")
    _require_durations(name, (minimum_s, *(float(np.min(rows[batch][1])) for batch in batches)))
    knots = np.unique(np.concatenate([rows[batch][0] for batch in batches])).astype(np.float64)
    values = np.stack([_extended_line(knots, *rows[batch]) for batch in batches]) * NS_PER_S
    head = np.array([TABLE, minimum_s * NS_PER_S, len(batches), len(knots)])
    return DecodeLatency(name, np.concatenate([head, np.array(batches, dtype=np.float64), knots, values.ravel()]))


def table_prefill(name: str, tokens: FloatArray, seconds: FloatArray) -> PrefillLatency:
    """A piecewise linear prefill through the points (tokens[m], seconds[m]), m ≥ 2."""
    if len(tokens) < 2:
        raise ConfigError(f"latency table {name}: {len(tokens)} points; expected two or more")
    _require_durations(name, (float(np.min(seconds)),))
    return PrefillLatency(name, np.concatenate([[TABLE, len(tokens)], tokens, seconds * NS_PER_S]))


def parse_decode_latency(text: str) -> DecodeLatency:
    """`affine:A,B,C` in seconds, or the name of a packaged table. Raises ConfigError, listing the names."""
    if text.startswith("affine:"):
        return affine_decode(*_numbers(text, "A,B,C", 3))
    return _packaged_decode(_known(text, "affine:A,B,C"))


def parse_prefill_latency(text: str) -> PrefillLatency:
    """`affine:P0,P1` in seconds, or the name of a packaged table. Raises ConfigError, listing the names."""
    if text.startswith("affine:"):
        return affine_prefill(*_numbers(text, "P0,P1", 2))
    return _packaged_prefill(_known(text, "affine:P0,P1"))


def latency_names() -> list[str]:
    """The names of the packaged models, as `model-gpus`."""
    return list(_capacities())


def kv_capacity(name: str) -> int:
    """KV tokens that fit the GPUs of a packaged model at 90 % of their memory. Raises ConfigError if unknown."""
    return _capacities()[_known(name, None)]


def _require_durations(name: str, values: tuple[float, ...]) -> None:
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"latency {name}: {value} is not a duration; expected finite seconds, 0 or more")
        if value > LONGEST_S:
            raise ConfigError(f"latency {name}: {value:g}; expected seconds, {LONGEST_S:g} at most")


def _numbers(text: str, form: str, count: int) -> list[float]:
    try:
        numbers = [float(part) for part in text.removeprefix("affine:").split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise ConfigError(f"latency {text!r}: expected affine:{form}, {count} numbers in seconds")
    return numbers


def _known(name: str, other: str | None) -> str:
    if name not in _capacities():
        also = f"{other}, or " if other else ""
        raise ConfigError(f"latency {name!r} is unknown; expected {also}one of: {', '.join(latency_names())}")
    return name


def _extended_line(at: FloatArray, points: FloatArray, values: FloatArray) -> FloatArray:
    """The piecewise linear function through the points, evaluated at `at`, extended by its first and last line."""
    slopes = np.diff(values) / np.diff(points)
    i = np.clip(np.searchsorted(points, at, side="right") - 1, 0, len(points) - 2)
    line: FloatArray = values[i] + slopes[i] * (at - points[i])
    return line


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader((_DATA / file).read_text(encoding="utf-8").splitlines()))


@cache
def _capacities() -> dict[str, int]:
    return {row["name"]: int(row["kv_tokens"]) for row in _rows("kv_capacity.csv")}


@cache
def _packaged_decode(name: str) -> DecodeLatency:
    points: dict[int, list[tuple[float, float]]] = {}
    for row in _rows(f"decode_{name}.csv"):
        points.setdefault(int(row["batch"]), []).append((float(row["kv_tokens"]), float(row["decode_ms"])))
    lines = {}
    for batch, line in points.items():
        kv_tokens, decode_ms = np.array(sorted(line)).T
        lines[batch] = (kv_tokens, decode_ms * NS_PER_MS / NS_PER_S)
    return table_decode(name, lines)


@cache
def _packaged_prefill(name: str) -> PrefillLatency:
    rows = [row for row in _rows(f"prefill_{name}.csv") if row["batch"] == "1"]
    tokens, prefill_ms = np.array(sorted((float(row["tokens"]), float(row["prefill_ms"])) for row in rows)).T
    return table_prefill(name, tokens, prefill_ms * NS_PER_MS / NS_PER_S)
