"""The discrete-event simulator: a cluster of continuous-batching engines, exact per iteration."""

from bidroute.core.figures import RequestTimes, Slo
from bidroute.simulator.fleet_changes import FleetChange
from bidroute.simulator.latency import (
    DecodeLatency,
    PrefillLatency,
    affine_decode,
    affine_prefill,
    kv_capacity,
    latency_names,
    parse_decode_latency,
    parse_prefill_latency,
    table_decode,
    table_prefill,
)
from bidroute.simulator.metrics import request_times, summary
from bidroute.simulator.recording import RecordOptions, Timeline
from bidroute.simulator.result import Outcome, RunResult
from bidroute.simulator.run import simulate
from bidroute.simulator.scenario import EngineConfig, PrefillPool, Scenario

__all__ = [
    "DecodeLatency",
    "EngineConfig",
    "FleetChange",
    "Outcome",
    "PrefillLatency",
    "PrefillPool",
    "RecordOptions",
    "RequestTimes",
    "RunResult",
    "Scenario",
    "Slo",
    "Timeline",
    "affine_decode",
    "affine_prefill",
    "kv_capacity",
    "latency_names",
    "parse_decode_latency",
    "parse_prefill_latency",
    "request_times",
    "simulate",
    "summary",
    "table_decode",
    "table_prefill",
]
