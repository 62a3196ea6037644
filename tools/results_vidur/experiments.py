"""What is run: the experiments of the paper, as far as it describes them, and the policies compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Llama-2-7B on an A100: a decode iteration is 8.7 ms + 29 µs per request, a prefill 2.3 ms + 64 µs per token (a fit of
# Vidur's own measurements, data/profiling/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv of microsoft/vidur: medians,
# summed over 32 layers), and attention reads 0.5 MB of KV per token at 80 % of 2 TB/s.
DECODE = "affine:0.0087,2.9e-5,3.2e-7"
PREFILL = "affine:0.0023,6.4e-5"
REPLICAS = 4
BLOCK_TOKENS = 16
SEEDS = (0, 1, 2)
REQUESTS = 400


@dataclass(frozen=True, slots=True)
class Experiment:
    """Four replicas under one load; every policy gets the same arrivals, batch caps and KV.

    `lengths`: chat (as the Azure conversations of 2023), or prompt:output of a constant ratio. `load` is the share of
    the capacity estimated; from the middle of the arrivals on `shift` times as many come per second. `kv_binds`: with
    little KV and slots enough; else with few slots, and the KV that Vidur plans for this model and GPU. `known`: what
    policies know of output lengths.
    """

    name: str
    title: str
    lengths: str = "chat"
    load: float = 1.4
    shift: float = 1.0
    kv_binds: bool = False
    known: str = "uniform:0.2"
    decode_only: bool = True
    batch_caps: tuple[int, ...] = ()
    speeds: tuple[float, ...] = ()
    beside: bool = False  # beyond the paper: fewer policies
    long: bool = False  # twice the requests: what waits has time to add up

    @property
    def batch_cap(self) -> int:
        """Requests in a batch at most."""
        return 64 if self.kv_binds else 16

    @property
    def kv_tokens(self) -> int | None:
        """KV tokens of a replica; None: what Vidur plans."""
        return 24_000 if self.kv_binds else None


EXPERIMENTS = (
    Experiment("under", "slots bind, just under capacity", load=0.95),
    Experiment("over", "slots bind, over capacity", long=True),
    Experiment("kv-over", "KV binds, over capacity", kv_binds=True, long=True),
    Experiment("kv-1-4", "KV binds, prompt:output 1:4", lengths="1:4", kv_binds=True, long=True),
    Experiment("kv-4-1", "KV binds, prompt:output 4:1", lengths="4:1", kv_binds=True, long=True),
    Experiment("shift", "slots bind, arrival rate ×1.5", load=0.85, shift=1.5),
    Experiment("kv-shift", "KV binds, arrival rate ×1.5", load=0.85, shift=1.5, kv_binds=True, long=True),
    Experiment("kv-unknown", "KV binds, lengths unknown", known="none", kv_binds=True, beside=True),
    Experiment(
        "aggregated", "KV binds, prefill and decode in one engine", decode_only=False, kv_binds=True, beside=True
    ),
    Experiment(
        "unlike",
        "slots bind, two replicas of half the slots and speed",
        batch_caps=(16, 16, 8, 8),
        speeds=(1.0, 1.0, 0.5, 0.5),
        beside=True,
    ),
)
NOISY = ("under", "over", "kv-over", "kv-1-4", "kv-4-1")
SHIFTED = ("shift", "kv-shift")

BASELINE = "round_robin"  # Vidur's own, which the published improvements are over
SUBJECT = "bid_price"
POLICIES = {  # Vidur's name for it → how tables call it
    "round_robin": "round robin (Vidur's)",
    "random": "random (Vidur's)",
    "lor": "LOR (Vidur's: counts waiting requests only)",
    "join_shortest_queue": "join_shortest_queue (true JSQ)",
    "power_of_d": "power_of_d (d = 2)",
    "fifo+safety": "fifo+safety",
    "least_footprint+safety": "least_footprint+safety",
    "least_footprint+safety+ageing": "least_footprint+safety+ageing",
    "bid_price": "bid_price",
}
BESIDE = (BASELINE, "join_shortest_queue", "power_of_d", "fifo+safety", "least_footprint+safety+ageing", SUBJECT)
OBJECTIVES = ("balanced", "latency", "ttft", "throughput", "tail")
OBJECTIVES_IN = ("kv-over", "kv-shift")

# The improvements over round robin that the paper reports, in percent: with noisy lengths, and under a rate shift.
PUBLISHED = {
    "E2E mean": (45.75, 44.81),
    "E2E p95": (42.49, 45.69),
    "E2E p99": (25.85, 31.15),
    "tokens/s": (0.90, 1.93),
    "SLO violations": (11.1, 14.57),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run: an experiment under a policy and one seed."""

    experiment: Experiment
    policy: str
    objective: str
    seed: int
    requests: int


def cases(requests: int, seeds: tuple[int, ...], names: tuple[str, ...]) -> Iterator[Case]:
    """Every run that the tables need, of the experiments of these names, seed by seed."""
    for seed in seeds:
        for experiment in (one for one in EXPERIMENTS if one.name in names):
            count = 2 * requests if experiment.long else requests
            for policy in BESIDE if experiment.beside else POLICIES:
                yield Case(experiment, policy, "balanced", seed, count)
            for objective in OBJECTIVES[1:] if experiment.name in OBJECTIVES_IN else ():
                yield Case(experiment, SUBJECT, objective, seed, count)
