"""What one Prometheus page of a vLLM or SGLang server says: a page becomes a `Reading`.

A page has hundreds of lines and is read several times a second, so only the few names that matter are looked at.
A name that is absent, or whose value is not a finite number, leaves its field None: engines come and go with names.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at an engine; None where the page does not say.

    `kind` is "vllm", "sglang" or "" (a page of something else). Counts are sums over the engines behind the page
    (data-parallel ranks), `engines` is how many there are; `kv_usage` (0–1) is their mean. `…_total` and `…_count`
    only ever grow while the engine lives. `steps_total` counts engine iterations; `token_gaps_s` is the sum of the
    `token_gaps_count` times between two tokens of one request. `kv_tokens` are the usable KV tokens:
    (num_gpu_blocks − 1)·block_size on vLLM, which keeps one block for itself.
    """

    kind: str = ""
    engines: int = 1
    running: int | None = None
    waiting: int | None = None
    waiting_for_capacity: int | None = None
    kv_usage: float | None = None
    preemptions_total: int | None = None
    generation_tokens_total: int | None = None
    prompt_tokens_total: int | None = None
    steps_total: int | None = None
    token_gaps_s: float | None = None
    token_gaps_count: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    batch_slots: int | None = None
    sleeping: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What an engine did between two readings; None where it cannot be told.

    `step_s` is the mean time per iteration, which is the engine's own period only if it was busy all the while;
    `token_gap_s` the mean time between two tokens of one request, which idling does not stretch.
    """

    step_s: float | None
    token_gap_s: float | None
    output_tokens_per_s: float | None
    preemptions: int


_COUNTS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_preemptions_total": "preemptions_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:iteration_tokens_total_count": "steps_total",
    "vllm:inter_token_latency_seconds_count": "token_gaps_count",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:num_retracted_requests_total": "preemptions_total",
    "sglang:generation_tokens_total": "generation_tokens_total",
    "sglang:prompt_tokens_total": "prompt_tokens_total",
    "sglang:inter_token_latency_seconds_count": "token_gaps_count",
    "sglang:max_total_num_tokens": "kv_tokens",
    "sglang:max_running_requests": "batch_slots",
}
_TIMES = {
    "vllm:inter_token_latency_seconds_sum": "token_gaps_s",
    "sglang:inter_token_latency_seconds_sum": "token_gaps_s",
}
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_BY_REASON = "vllm:num_requests_waiting_by_reason"
_SLEEP = "vllm:engine_sleep_state"
_CACHE = "vllm:cache_config_info"
_NAMES = {*_COUNTS, *_TIMES, *_USAGE, _BY_REASON, _SLEEP, _CACHE}
# Ranks of one engine report the same figures; they are one engine, not many.
_RANKS = re.compile(r'\b(?:tp_rank|pp_rank|moe_ep_rank|pid)="[^"]*",?')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_Samples = dict[str, dict[str, float]]


def parse_reading(page: str) -> Reading:
    """The reading of a Prometheus text page; a page of anything else gives an empty one."""
    samples = _samples(page)
    if not samples:
        return Reading()
    fields: dict[str, int | float] = {}
    for name, field in _COUNTS.items():
        if name in samples:
            fields[field] = round(sum(samples[name].values()))
    for name, field in _TIMES.items():
        if name in samples:
            fields[field] = sum(samples[name].values())
    usage = next((samples[name].values() for name in _USAGE if name in samples), None)
    if usage:
        fields["kv_usage"] = min(1.0, max(0.0, sum(usage) / len(usage)))
    if _BY_REASON in samples:
        fields["waiting_for_capacity"] = round(_sum_where(samples[_BY_REASON], "reason", "capacity"))
    fields |= _cache_fields(samples.get(_CACHE, {}))
    return Reading(
        kind=next(iter(samples)).partition(":")[0],
        engines=_engines(samples),
        sleeping=_sum_where(samples.get(_SLEEP, {}), "sleep_state", "awake", default=1.0) == 0,
        **fields,  # type: ignore[arg-type]
    )


def progress_between(before: Reading, after: Reading, duration_s: float) -> Progress | None:
    """What happened in the `duration_s` between two readings; None after a restart (a counter went back)."""
    steps = _growth(before.steps_total, after.steps_total)
    gaps = _growth(before.token_gaps_count, after.token_gaps_count)
    tokens = _growth(before.generation_tokens_total, after.generation_tokens_total)
    preemptions = _growth(before.preemptions_total, after.preemptions_total)
    if min(value or 0 for value in (steps, gaps, tokens, preemptions)) < 0 or duration_s <= 0:
        return None
    gaps_s = 0.0
    if before.token_gaps_s is not None and after.token_gaps_s is not None:
        gaps_s = after.token_gaps_s - before.token_gaps_s
    return Progress(
        step_s=duration_s / steps if steps else None,
        token_gap_s=gaps_s / gaps if gaps and gaps_s > 0 else None,
        output_tokens_per_s=None if tokens is None else tokens / duration_s,
        preemptions=preemptions or 0,
    )


def _samples(page: str) -> _Samples:
    """Name → labels without ranks → value; the largest where several ranks tell of one engine."""
    samples: _Samples = {}
    for line in page.split("\n"):
        if not line.startswith(("vllm", "sglang")):
            continue
        name = line[: line.find("{")] if "{" in line else line.partition(" ")[0]
        if name not in _NAMES:
            # SGLang writes its names with an underscore where a colon is not allowed.
            name = name.replace("_", ":", 1) if name.startswith("sglang_") else ""
            if name not in _NAMES:
                continue
        labels, _, text = line[len(name) :].rpartition("}")
        try:
            value = float(text.split(None, 1)[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value):
            series = samples.setdefault(name, {})
            key = _RANKS.sub("", labels)
            series[key] = max(value, series.get(key, value))
    return samples


def _sum_where(series: dict[str, float], label: str, wanted: str, default: float = 0.0) -> float:
    if not series:
        return default
    return sum(value for labels, value in series.items() if f'{label}="{wanted}"' in labels)


def _cache_fields(series: dict[str, float]) -> dict[str, int]:
    """`num_gpu_blocks` in all, `block_size`, and the usable `kv_tokens`, from the labels of vLLM's info metric."""
    blocks, tokens, block_size = 0, 0, 0
    for labels in series:
        label = dict(_LABEL.findall(labels))
        count, size = label.get("num_gpu_blocks", ""), label.get("block_size", "")
        if count.isdecimal() and size.isdecimal() and int(count) > 1 and int(size) > 0:
            blocks += int(count)
            block_size = int(size)
            tokens += (int(count) - 1) * block_size
    return {"num_gpu_blocks": blocks, "block_size": block_size, "kv_tokens": tokens} if blocks else {}


def _engines(samples: _Samples) -> int:
    """How many engines report on the page: the series of its number of running requests."""
    return max(len(samples.get(name, ())) for name in ("vllm:num_requests_running", "sglang:num_running_reqs")) or 1


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
