"""The worker's `/metrics`: vLLM's names, so that whatever reads a vLLM server reads this one."""

from __future__ import annotations

from collections.abc import Mapping

from bidroute.worker.runner import Runner
from bidroute.worker.settings import WorkerSettings
from bidroute.worker.transfer import TransferCounters

FINISHED_REASONS = ("stop", "length", "abort", "error")
Sample = tuple[str, Mapping[str, str], float]  # suffix of the name, labels, value


def metrics_page(settings: WorkerSettings, runner: Runner, ended: Mapping[str, int], transfer: TransferCounters) -> str:
    """The page in Prometheus text format; `ended` counts requests by why they ended."""
    engine = runner.engine
    counters = engine.counters
    waiting = float(len(engine.waiting))
    lines: list[str] = []

    def family(name: str, kind: str, text: str, *samples: Sample) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
        for suffix, labels, value in samples:
            every = {"engine": "0", "model_name": settings.model, **labels}
            inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in sorted(every.items()))
            lines.append(f"{name}{suffix}{{{inside}}} {value}")

    def counter(name: str, text: str, value: int) -> None:
        family(f"vllm:{name}_total", "counter", text, ("", {}, float(value)))

    family("vllm:num_requests_running", "gauge", "Requests in the batch.", ("", {}, float(engine.running)))
    family("vllm:num_requests_waiting", "gauge", "Requests in the engine's own queue.", ("", {}, waiting))
    family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Requests in the engine's own queue, by reason.",
        ("", {"reason": "capacity"}, waiting),
        ("", {"reason": "deferred"}, 0.0),
    )
    family(
        "vllm:engine_sleep_state",
        "gauge",
        "Whether the engine is awake.",
        ("", {"sleep_state": "awake"}, 1.0),
        ("", {"sleep_state": "weights_offloaded"}, 0.0),
        ("", {"sleep_state": "discard_all"}, 0.0),
    )
    family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage, 1 is full.", ("", {}, engine.kv_usage))
    counter("num_preemptions", "Preemptions.", counters.preemptions)
    counter("prompt_tokens", "Prompt tokens processed.", counters.prompt_tokens)
    counter("generation_tokens", "Tokens generated.", counters.generation_tokens)
    family(
        "vllm:request_success_total",
        "counter",
        "Requests that ended, by reason.",
        *(("", {"finished_reason": reason}, float(ended.get(reason, 0))) for reason in FINISHED_REASONS),
    )

    def histogram(name: str, text: str, count: int, total: float) -> None:
        bucket = ("_bucket", {"le": "+Inf"}, float(count))
        family(f"vllm:{name}", "histogram", text, bucket, ("_count", {}, float(count)), ("_sum", {}, total))

    histogram("iteration_tokens_total", "Tokens per iteration.", counters.passes, float(counters.pass_tokens))
    first, gaps = runner.first_tokens, runner.token_gaps
    histogram("time_to_first_token_seconds", "Time to first token.", first.count, first.sum_s)
    histogram("inter_token_latency_seconds", "Time between tokens.", gaps.count, gaps.sum_s)
    family(
        "vllm:prompt_tokens_by_source_total",
        "counter",
        "Prompt tokens, by source.",
        ("", {"source": "local_compute"}, float(counters.prompt_tokens)),
        ("", {"source": "external_kv_transfer"}, float(transfer.fetched_tokens)),
    )
    counter("nixl_num_kv_expired_reqs", "Requests whose KV nobody fetched in time.", transfer.expired)
    counter("nixl_num_notifications_after_expiry", "Fetches that came too late.", transfer.fetched_too_late)
    family(
        "bidroute_worker:fetched_prompts_total",
        "counter",
        "Prompts whose KV came from another worker.",
        ("", {}, float(transfer.fetched)),
    )
    family(
        "bidroute_worker:recomputed_prompts_total",
        "counter",
        "Prompts that were to come from another worker, which did not have them: processed here.",
        ("", {}, float(transfer.recomputed)),
    )
    # Like vLLM, one block more than requests can use.
    cache = {"block_size": str(settings.block_size), "num_gpu_blocks": str(settings.kv_blocks + 1)}
    family("vllm:cache_config_info", "gauge", "The KV cache.", ("", cache, 1.0))
    family(
        "bidroute_worker:lag_seconds_total",
        "counter",
        "Time by which iterations fell behind for good: above 0, the machine is too slow for this time scale.",
        ("", {}, runner.lag_s),
    )
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
