"""Execution times without profiling data: our affine and table models, and replicas of unlike speed.

Vidur reads the types of the fields of a configuration, so annotations in this module are types and not text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isabstract
from typing import Any

from vidur.config import CacheConfig, ReplicaConfig
from vidur.config.config import BaseExecutionTimePredictorConfig
from vidur.entities import Batch, ExecutionTime
from vidur.execution_time_predictor.execution_time_predictor_registry import ExecutionTimePredictorRegistry
from vidur.types import BaseIntEnum, ExecutionTimePredictorType

from bidroute.errors import ConfigError
from bidroute.simulator.latency import parse_decode_latency, parse_prefill_latency

MS_PER_S = 1e3
NS_PER_MS = 1e6


class LatencyType(BaseIntEnum):
    """Beside Vidur's own types, which end below 100."""

    BIDROUTE_LATENCY = 101


@dataclass
class LatencyPredictorConfig(BaseExecutionTimePredictorConfig):
    """One iteration from its batch, its KV tokens and its new prompt tokens; Vidur makes options of the fields."""

    decode: str = field(
        default="llama-3.1-8b-a100",
        metadata={"help": "Decode latency: affine:A,B,C in seconds (A + B·batch + C·KV tokens), or a packaged table."},
    )
    prefill: str = field(
        default="llama-3.1-8b-a100",
        metadata={"help": "Prefill latency: affine:P0,P1 in seconds (P0 + P1·new tokens), or a packaged table."},
    )

    @staticmethod
    def get_type() -> BaseIntEnum:
        """The name of this predictor in Vidur's options: bidroute_latency."""
        return LatencyType.BIDROUTE_LATENCY


class LatencyPredictor:
    """Times of whole iterations, in whole nanoseconds, as the simulator has them."""

    def __init__(
        self, predictor_config: LatencyPredictorConfig, replica_config: ReplicaConfig, cache_config: CacheConfig
    ) -> None:
        if replica_config.num_pipeline_stages != 1:
            raise ConfigError(
                f"replica_config_num_pipeline_stages={replica_config.num_pipeline_stages}; expected 1: the latency "
                "models of bidroute are of whole replicas"
            )
        self.decode = parse_decode_latency(predictor_config.decode)
        self.prefill = parse_prefill_latency(predictor_config.prefill)

    def get_execution_time(self, batch: Batch, pipeline_stage: int) -> ExecutionTime:
        """The time of this batch: a prefill pass over its mean chunk, and a decode step where anybody decodes."""
        decoding, context_tokens, prefills, computed, prefix = 0, 0, 0, 0, 0
        for request, q_tokens, kv_tokens in zip(batch.requests, batch.num_q_tokens, batch.num_kv_tokens, strict=True):
            if request.is_prefill_complete:
                decoding += 1
                context_tokens += kv_tokens - 1
            else:
                prefills += 1
                computed += kv_tokens
                prefix += kv_tokens - q_tokens
        prefill_s = self.prefill.seconds(prefills * (computed // prefills - prefix // prefills)) if prefills else 0.0
        decode_s = self.decode.seconds(decoding, context_tokens) if decoding else 0.0
        return execution_time(decode_s * MS_PER_S, prefill_s * MS_PER_S)


class SpeedPredictor:
    """The execution times of another predictor, of Vidur's or ours, divided by `speed`."""

    def __init__(self, predictor: Any, speed: float) -> None:
        self.predictor, self.speed = predictor, speed

    def get_execution_time(self, batch: Batch, pipeline_stage: int) -> ExecutionTime:
        """The time of this batch on a replica of this speed, in whole nanoseconds."""
        time_ms = self.predictor.get_execution_time(batch, pipeline_stage).total_time * MS_PER_S / self.speed
        return execution_time(round(time_ms * NS_PER_MS) / NS_PER_MS, 0.0)


def execution_time(decode_ms: float, prefill_ms: float) -> ExecutionTime:
    """A time of Vidur's, of one layer that does nothing but this."""
    return ExecutionTime(
        num_layers_per_pipeline_stage=1,
        attention_rope_execution_time=0.0,
        attention_kv_cache_save_execution_time=0.0,
        attention_decode_execution_time=decode_ms,
        attention_prefill_execution_time=prefill_ms,
        attention_layer_pre_proj_execution_time=0.0,
        attention_layer_post_proj_execution_time=0.0,
        mlp_layer_up_proj_execution_time=0.0,
        mlp_layer_down_proj_execution_time=0.0,
        mlp_layer_act_execution_time=0.0,
        attn_norm_time=0.0,
        mlp_norm_time=0.0,
        add_time=0.0,
        tensor_parallel_communication_time=0.0,
        pipeline_parallel_communication_time=0.0,
    )


def register_latency() -> None:
    """Let Vidur know the predictor, whose options come from its configuration by themselves, and mend Vidur's own."""
    ExecutionTimePredictorRegistry.register(LatencyType.BIDROUTE_LATENCY, LatencyPredictor)
    for kind in ExecutionTimePredictorType:
        if kind in ExecutionTimePredictorRegistry._registry:
            _mend(kind)


def _mend(kind: ExecutionTimePredictorType) -> None:
    """Let Vidur make its own predictor: it cannot while a method that has a body is declared abstract."""
    theirs = ExecutionTimePredictorRegistry.get_class(kind)
    if isabstract(theirs):
        methods = {name: getattr(theirs, name) for name in theirs.__abstractmethods__}
        plain = {name: _calling(method) for name, method in methods.items()}
        ExecutionTimePredictorRegistry.unregister(kind)
        ExecutionTimePredictorRegistry.register(kind, type(theirs.__name__, (theirs,), plain))


def _calling(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, without the mark of an abstract method."""

    def call(*arguments: Any, **options: Any) -> Any:
        return method(*arguments, **options)

    return call
