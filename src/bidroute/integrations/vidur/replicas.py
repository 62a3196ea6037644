"""The replicas of a cluster: unlike in batch cap, KV and speed where asked for, and watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vidur.config import SimulationConfig
from vidur.entities import Batch
from vidur.scheduler.global_scheduler.base_global_scheduler import BaseGlobalScheduler
from vidur.scheduler.replica_scheduler.replica_scheduler_registry import ReplicaSchedulerRegistry
from vidur.types import ReplicaId

from bidroute.core.devices import Device
from bidroute.errors import ConfigError
from bidroute.integrations.vidur.latency import SpeedPredictor
from bidroute.integrations.vidur.options import Bidroute
from bidroute.integrations.vidur.requests import RoutedRequest


class Watcher(Protocol):
    """Who hears of the batches of a replica; `device` is its place in the cluster."""

    def scheduled(self, device: int, batch: Batch | None) -> None:
        """The replica was asked for its next batch; None: it has none, or runs one already."""

    def ended(self, device: int, batch: Batch) -> None:
        """A batch ended, and those that have all their tokens have left the replica."""


class Replica:
    """A replica scheduler of Vidur's, handed to Vidur in its place: it does all the same, and its batches are watched.

    `slots`: its batch cap. `chunk_size`: the token budget of a batch, of engines that have one. `kv_tokens`: what
    requests can hold: its blocks less those that Vidur keeps free when it admits (the watermark) and when a running
    request asks for its next token (one).
    """

    def __init__(self, device: int, scheduler: Any) -> None:
        self.device = device
        self.scheduler = scheduler
        self.watcher: Watcher | None = None
        cache = scheduler._cache_config
        spare_blocks = max(getattr(scheduler, "_watermark_blocks", 0), 1)
        self.slots: int = scheduler._config.batch_size_cap
        self.chunk_size: int = getattr(scheduler._config, "chunk_size", 0)
        self.block_size: int = cache.block_size
        self.kv_tokens = int(cache.num_blocks - spare_blocks) * self.block_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)

    @property
    def id(self) -> ReplicaId:
        """Vidur's name for it."""
        return self.scheduler.replica_id

    def can_complete(self, request: RoutedRequest) -> bool:
        """Whether the request could run to its end here alone."""
        blocks = -(-(request.prompt_tokens + request.output_tokens) // self.block_size)
        return bool(blocks * self.block_size <= self.kv_tokens)

    def add_request(self, request: RoutedRequest) -> None:
        """The request enters the replica's own queue."""
        request.device = self.device
        self.scheduler.add_request(request)

    def on_schedule(self, time: float) -> Batch | None:
        """The next batch, if it can start."""
        batch = self.scheduler.on_schedule(time)
        if self.watcher is not None:
            self.watcher.scheduled(self.device, batch)
        return batch

    def on_batch_end(self, batch: Batch) -> None:
        """A batch ended."""
        self.scheduler.on_batch_end(batch)
        if self.watcher is not None:
            self.watcher.ended(self.device, batch)


def fit_replicas(scheduler: BaseGlobalScheduler, config: SimulationConfig, options: Bidroute) -> list[Replica]:
    """Put watched replicas, with their own sizes and speeds, in the place of those the scheduler has made."""
    made = scheduler._replica_schedulers
    for name, values in (
        ("batch_caps", options.batch_caps),
        ("kv_tokens", options.kv_tokens),
        ("speeds", options.speeds),
    ):
        if values and len(values) != len(made):
            raise ConfigError(f"bidroute_{name}: {len(values)} values for {len(made)} replicas; expected one each")
        if any(not value > 0 for value in values):
            raise ConfigError(f"bidroute_{name}={list(values)}; expected positive numbers")
    shapes = [
        Shape(_nth(options.batch_caps, i), _nth(options.kv_tokens, i), _nth(options.speeds, i))
        for i in range(len(made))
    ]
    replicas = [
        Replica(device, _own(scheduler, config, replica_id, shape))
        for device, (replica_id, shape) in enumerate(zip(made, shapes, strict=True))
    ]
    made.update({replica.id: replica for replica in replicas})
    return replicas


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked of one replica; None: as the configuration has it for all."""

    batch_cap: int | None
    kv_tokens: int | None
    speed: float | None


def _nth(values: Sequence[Any], place: int) -> Any:
    return values[place] if values else None


def _own(scheduler: BaseGlobalScheduler, config: SimulationConfig, replica_id: ReplicaId, shape: Shape) -> Any:
    """A replica scheduler with a configuration of its own."""
    cluster = config.cluster_config
    engine, cache = cluster.replica_scheduler_config, cluster.cache_config
    if shape.batch_cap is not None:
        engine = replace(engine, batch_size_cap=shape.batch_cap)
    if shape.kv_tokens is not None:
        cache = replace(cache, num_blocks=shape.kv_tokens // cache.block_size)
    predictor = scheduler._replica_schedulers[replica_id]._execution_time_predictor
    if shape.speed is not None:
        predictor = SpeedPredictor(predictor, shape.speed)
    return ReplicaSchedulerRegistry.get(
        engine.get_type(),
        replica_config=cluster.replica_config,
        replica_scheduler_config=engine,
        cache_config=cache,
        request_generator_config=config.request_generator_config,
        replica=scheduler._replicas[replica_id],
        num_stages=cluster.replica_config.num_pipeline_stages,
        execution_time_predictor=predictor,
    )


def devices_of(replicas: Sequence[Replica]) -> list[Device]:
    """The replicas as the core knows them; what paces they start from is that of a half full batch."""
    batches = [max(1, replica.slots // 2) for replica in replicas]
    periods_s = [_period_s(replica, batch) for replica, batch in zip(replicas, batches, strict=True)]
    rates = [batch / period_s for batch, period_s in zip(batches, periods_s, strict=True)]
    mean_rate = sum(rates) / len(rates)
    return [
        Device(f"replica-{r.device}", r.slots, r.kv_tokens, r.block_size, period_s, rate / mean_rate)
        for r, period_s, rate in zip(replicas, periods_s, rates, strict=True)
    ]


def _period_s(replica: Replica, batch: int) -> float:
    tokens = max(1, replica.kv_tokens // (2 * batch))
    request = RoutedRequest(0, 0.0, tokens, 1, decode_only=True)
    example = Batch(replica.id, [request] * batch, [1] * batch, [tokens] * batch)
    return float(replica.scheduler._execution_time_predictor.get_execution_time(example, 0).total_time)
