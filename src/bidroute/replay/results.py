"""From what became of every request to the rows that `compare` reports."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np

from bidroute import __version__
from bidroute.core.figures import figures, percentiles, times_of
from bidroute.core.queue import FloatArray
from bidroute.experiments.describe import finite, workload_data
from bidroute.experiments.results import Comparison, RequestColumns, Result, quantiles
from bidroute.replay.run import Replayed
from bidroute.replay.sending import Ending, Sent
from bidroute.replay.settings import ReplaySettings


def comparison_of(settings: ReplaySettings, runs: list[Replayed]) -> Comparison:
    """One row per seed, under the name of the label, with the notes a reader needs."""
    first = runs[0]
    scenario = {
        "target": settings.target,
        "model": first.model,
        "endpoint": "chat/completions" if settings.chat else "completions",
        "trace": settings.trace,
        "seeds": [run.seed for run in runs],
        "workload": workload_data(first.workload, first.speedup),
        "bytes_per_token": settings.bytes_per_token,
        "timeout_s": settings.timeout_s,
        "slo": {name: finite(value) for name, value in asdict(settings.slo).items()},
        "version": __version__,
        "policies": [settings.label],
    }
    return Comparison(scenario, [_result(settings, run) for run in runs], _notes(settings, runs))


def sentence(comparison: Comparison) -> str:
    """What was sent where, in one sentence."""
    scenario = comparison.scenario
    workload, seeds = scenario["workload"], len(comparison.seeds)
    rate = workload["requests_per_s"]
    arrivals = "all at once" if rate is None else f"{rate:.3g} requests/s"
    return (
        f"{workload['requests']} requests of {scenario['trace']} at ×{workload['speedup']:.4g} ({arrivals}) to "
        f"{scenario['target']}, model {scenario['model']}; latencies count from the scheduled arrival; "
        f"{seeds} seed{'s' if seeds > 1 else ''}."
    )


def _result(settings: ReplaySettings, run: Replayed) -> Result:
    columns = _columns(run)
    return Result(
        settings.label,
        run.seed,
        _row(settings, run),
        quantiles(columns.e2e_s),
        quantiles(columns.ttft_s),
        requests=columns,
    )


def _row(settings: ReplaySettings, run: Replayed) -> dict[str, Any]:
    """The figures of the finished requests, and what became of the others.

    `preemptions` is None where no worker was scraped; `late_s` is how late requests were sent; `prompt_tokens_ratio`
    the server's count of prompt tokens over the wanted one; `short` finished with fewer tokens than asked for.
    """
    done = [sent for sent in run.sent if sent.ending is Ending.FINISHED]
    arrival_s, first_s, end_s = (_array(done, name) for name in ("scheduled_s", "first_s", "end_s"))
    tokens = np.array([sent.output_tokens for sent in done], dtype=np.int64)
    times = times_of(arrival_s, first_s, end_s, tokens)
    span_s = float(np.max(end_s) - run.workload.arrival_s[0]) if done else math.nan
    endings = Counter(sent.ending for sent in run.sent)
    row = {
        **figures(times, int(tokens.sum()), span_s, settings.slo),
        "preemptions": sum(worker.preemptions for worker in run.workers) if run.workers else None,
        "refused": endings[Ending.REFUSED],
        "unfinished": endings[Ending.BROKEN] + endings[Ending.TIMEOUT],
        "failures": dict(Counter(sent.reason for sent in run.sent if sent.reason)),
        "short": sum(sent.output_tokens < sent.wanted_tokens for sent in done),
        "prompt_tokens_ratio": _prompt_ratio(run),
        "late_s": percentiles(_array(run.sent, "sent_s") - _array(run.sent, "scheduled_s"), (50, 99)),
        "workers": [asdict(worker) for worker in run.workers],
    }
    return {key: _finite(value) for key, value in row.items()}


def _prompt_ratio(run: Replayed) -> float:
    pairs = [
        (sent.prompt_tokens, wanted)
        for sent, wanted in zip(run.sent, run.workload.prompt_tokens.tolist(), strict=True)
        if sent.prompt_tokens is not None
    ]
    wanted = sum(wanted for _, wanted in pairs)
    return sum(count for count, _ in pairs) / wanted if wanted else math.nan


def _columns(run: Replayed) -> RequestColumns:
    count = len(run.sent)
    done = np.array([sent.ending is Ending.FINISHED for sent in run.sent])
    arrival_s = _array(run.sent, "scheduled_s")
    return RequestColumns(
        arrival_s=arrival_s,
        prompt_tokens=run.workload.prompt_tokens,
        output_tokens=run.workload.output_tokens,
        device=np.full(count, -1, dtype=np.int64),
        ttft_s=np.where(done, _array(run.sent, "first_s") - arrival_s, np.nan),
        e2e_s=np.where(done, _array(run.sent, "end_s") - arrival_s, np.nan),
        held_s=np.full(count, np.nan),
        preemptions=np.zeros(count, dtype=np.int64),
    )


def _notes(settings: ReplaySettings, runs: list[Replayed]) -> list[str]:
    notes = []
    if runs[0].workload.skipped_rows:
        notes.append(f"{runs[0].workload.skipped_rows} bad rows of the trace were skipped")
    for run in runs:
        reasons = Counter(sent.reason for sent in run.sent if sent.ending is not Ending.FINISHED)
        if reasons:
            listed = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
            notes.append(f"seed {run.seed}: {reasons.total()} requests failed and are not in the latencies: {listed}")
        if run.workers:
            peaks = ", ".join(str(worker.queue_peak) for worker in run.workers)
            notes.append(f"seed {run.seed}: longest queues inside the workers: {peaks}")
        late = _array(run.sent, "sent_s") - _array(run.sent, "scheduled_s")
        if len(late) and np.nanmax(late) > 0.1:
            notes.append(
                f"seed {run.seed}: requests were sent up to {np.nanmax(late):.2f} s late; this machine is busy"
            )
    ratio = _prompt_ratio(runs[0])
    if math.isfinite(ratio) and abs(ratio - 1.0) > 0.05:
        better = settings.bytes_per_token / ratio
        notes.append(f"the server counts {ratio:.2f} × the wanted prompt tokens; --bytes-per-token {better:.3g} fits")
    if runs[0].workers == []:
        notes.append("preemptions are not known; give the workers with --scrape URL")
    return notes


def _array(rows: list[Sent], name: str) -> FloatArray:
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def _finite(value: Any) -> Any:
    """The same plain data with None for numbers that do not exist."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return finite(value) if isinstance(value, float) else value
