"""The arrivals and lengths of an experiment, and what its replicas can carry."""

from __future__ import annotations

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.simulator.latency import parse_decode_latency, parse_prefill_latency
from bidroute.traces import Workload, load_trace
from tools.results_vidur.experiments import DECODE, PREFILL, REPLICAS, Experiment

PLANNED_KV_TOKENS = 120_000  # about what Vidur plans for Llama-2-7B on an A100; only the load is estimated with it
SHORTEST, LONGEST = 64, 1536  # tokens of a request, prompt and output, where their ratio is constant


def workload_of(experiment: Experiment, requests: int, seed: int) -> Workload:
    """Poisson arrivals at the load of the experiment; the same for every policy."""
    random = np.random.default_rng(1000 + seed)
    prompt_tokens, output_tokens = _lengths(experiment.lengths, requests, seed, random)
    gaps_s = random.exponential(1.0, requests) / (
        experiment.load * capacity_per_s(experiment, prompt_tokens, output_tokens)
    )
    gaps_s[requests // 2 :] /= experiment.shift
    arrival_s = np.cumsum(gaps_s)
    return Workload(experiment.name, np.rint((arrival_s - arrival_s[0]) * 1e9) / 1e9, prompt_tokens, output_tokens)


def _lengths(kind: str, requests: int, seed: int, random: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Prompt and output tokens, int64[n]; of a constant ratio their sum is log-uniform."""
    if kind == "chat":
        chat = load_trace("builtin:azure-conv-like", requests=requests, seed=seed)
        return chat.prompt_tokens, chat.output_tokens
    prompt_parts, output_parts = (int(part) for part in kind.split(":"))
    totals = np.exp(random.uniform(np.log(SHORTEST), np.log(LONGEST), requests))
    output_tokens = np.rint(totals * output_parts / (prompt_parts + output_parts)).astype(np.int64)
    return np.rint(totals).astype(np.int64) - output_tokens, output_tokens


def capacity_per_s(experiment: Experiment, prompt_tokens: IntArray, output_tokens: IntArray) -> float:
    """Requests per second that all replicas finish between them with full batches.

    A batch is full at its cap, or where the KV that requests hold on average through their lives fills the replica.
    """
    kv_tokens = experiment.kv_tokens or PLANNED_KV_TOKENS
    context = _mean_context(prompt_tokens, output_tokens)
    total = 0.0
    for device in range(REPLICAS):
        cap = experiment.batch_caps[device] if experiment.batch_caps else experiment.batch_cap
        speed = experiment.speeds[device] if experiment.speeds else 1.0
        batch = max(1, min(cap, int(kv_tokens / context)))
        per_request_s = (
            float(output_tokens.mean()) * parse_decode_latency(DECODE).seconds(batch, int(batch * context)) / batch
        )
        if not experiment.decode_only:
            per_request_s += parse_prefill_latency(PREFILL).seconds(int(prompt_tokens.mean()))
        total += speed / per_request_s
    return total


def _mean_context(prompt_tokens: IntArray, output_tokens: IntArray) -> float:
    """Mean KV of a running request: each counts for as long as it runs."""
    held: FloatArray = prompt_tokens * output_tokens + output_tokens**2 / 2.0
    return float(held.sum() / output_tokens.sum())
