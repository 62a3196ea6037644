"""Small clusters and workloads, in Vidur and in our simulator."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bidroute.integrations.vidur.results import VidurRun
from bidroute.integrations.vidur.run import run
from bidroute.integrations.vidur.setup import parse_options
from bidroute.lengths import build_predictor, predicted_tokens
from bidroute.policies import PolicySettings, build_policy
from bidroute.simulator import EngineConfig, RunResult, Scenario, affine_decode, simulate
from bidroute.simulator.latency import affine_prefill
from bidroute.traces import Workload

# Whole nanoseconds per token and request, so that a replica of half the speed takes exactly twice as long.
DECODE_S = (0.006, 5e-5, 5e-8)
PREFILL_S = (0.004, 5e-5)
CHUNK_TOKENS = 512


def workload(requests: int, rate_per_s: float, seed: int = 0) -> Workload:
    """Poisson arrivals at whole nanoseconds; prompts up to 400 tokens, outputs log-normal."""
    random = np.random.default_rng(seed)
    arrival_s = np.cumsum(random.exponential(1.0 / rate_per_s, requests))
    return Workload(
        "test",
        np.rint((arrival_s - arrival_s[0]) * 1e9) / 1e9,
        random.integers(10, 400, requests),
        np.clip(random.lognormal(4.6, 0.9, requests).astype(np.int64), 1, 1000),
    )


def words(policy: str, folder: Path, replicas: int = 2, **options: object) -> list[str]:
    """Vidur's options for a small cluster; `options` are more of them, by name."""
    chosen = {
        "seed": 1,
        "metrics_config_output_dir": folder,
        "cluster_config_num_replicas": replicas,
        "replica_config_model_name": "meta-llama/Llama-2-7b-hf",
        "replica_config_num_pipeline_stages": 1,
        "replica_config_tensor_parallel_size": 1,
        "replica_config_device": "a100",
        "replica_config_network_device": "a100_dgx",
        "replica_scheduler_config_type": "sarathi",
        "sarathi_scheduler_config_batch_size_cap": 16,
        "sarathi_scheduler_config_chunk_size": CHUNK_TOKENS,
        "cache_config_block_size": 1,
        "cache_config_num_blocks": 20_001,
        "cache_config_watermark_blocks_fraction": 0.0,
        "execution_time_predictor_config_type": "bidroute_latency",
        "latency_predictor_config_decode": _affine(DECODE_S),
        "latency_predictor_config_prefill": _affine(PREFILL_S),
        "global_scheduler_config_type": policy,
        **options,
    }
    flags = ["--no-metrics_config_write_metrics", "--no-metrics_config_enable_chrome_trace"]
    return flags + [word for name, value in chosen.items() for word in _option(name, value)]


def in_vidur(policy: str, folder: Path, arrivals: Workload, **options: object) -> VidurRun:
    """One run in Vidur."""
    return run(parse_options(words(policy, folder, **options)), arrivals)


def in_simulator(
    policy: str, twin: VidurRun, arrivals: Workload, speeds: Sequence[float], **options: object
) -> RunResult:
    """The same run in our simulator, on the replicas that the run in Vidur had."""
    scenario = Scenario(
        arrivals,
        tuple(twin.devices),
        tuple(affine_decode(*(part / speed for part in DECODE_S)) for speed in speeds),
        tuple(affine_prefill(*(part / speed for part in PREFILL_S)) for speed in speeds),
        mode="decode" if options["decode_only"] else "aggregated",
        engine=EngineConfig(max_batched_tokens=CHUNK_TOKENS),
        ttft_slo_s=2.0,
        e2e_slo_s=30.0,
    )
    lengths = str(options["lengths"])
    return simulate(
        scenario,
        build_policy(policy, PolicySettings(seed=1)),
        build_predictor(lengths),
        predicted_tokens=predicted_tokens(lengths, arrivals.output_tokens, 1),
    )


def _affine(parts: Sequence[float]) -> str:
    return "affine:" + ",".join(map(repr, parts))


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{name}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, list | tuple) else [str(value)])]
