"""How fast things are here: the simulator, decisions and price updates over (devices, waiting), and memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from time import perf_counter, process_time

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.requests import Request
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, PolicySettings, build_policy
from bidroute.simulator import EngineConfig, Scenario, parse_decode_latency, parse_prefill_latency, simulate
from bidroute.traces import load_trace

SIZES = ((4, 100), (64, 1000), (256, 4000), (1024, 10_000))
WORKLOAD = "builtin:azure-conv-like"
BATCH_SLOTS = 64
KV_TOKENS = 80_000
PERIOD_S = 0.01
_FILL = 0.9  # of a device's KV before the first timed decision
_WARM_UP = 20  # decisions before the clock counts


@dataclass(frozen=True, slots=True)
class SimulatorSpeed:
    """Requests simulated per CPU-second, round robin on aggregated workers."""

    requests: int
    cpu_s: float

    @property
    def requests_per_cpu_s(self) -> float:
        """The figure itself."""
        return self.requests / self.cpu_s


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """Wall time of decisions and of price updates, float64[epochs] each, in microseconds."""

    policy: str
    devices: int
    waiting: int
    decide_us: FloatArray
    update_us: FloatArray


def simulator_speed(requests: int = 100_000, workers: int = 8) -> SimulatorSpeed:
    """Simulate a built-in workload under round robin on `workers` aggregated workers, at a fair load."""
    workload = load_trace(WORKLOAD, requests=requests, seed=0)
    scenario = Scenario(
        workload=workload,
        devices=tuple(Device(f"worker-{index}", 256, 400_000, block_size=16) for index in range(workers)),
        latency=parse_decode_latency("affine:0.006,5e-05,5.086e-08"),
        prefill=parse_prefill_latency("affine:0.005,4e-05"),
        mode="aggregated",
        engine=EngineConfig(),
    )
    for timed in (workload.head(100), workload):  # the first round pays for compilation
        policy = build_policy("round_robin", PolicySettings())
        before = process_time()
        simulate(replace(scenario, workload=timed), policy, build_predictor("none"))
        cpu_s = process_time() - before
    return SimulatorSpeed(requests, cpu_s)


def decision_times(policy: str, devices: int, waiting: int, epochs: int = 200) -> DecisionTimes:
    """Time a policy on a busy fleet: at every epoch one device starts a period and `waiting` requests queue.

    Between epochs the device's oldest requests end and as many arrive as were released.
    """
    bench = _Bench(policy, devices, waiting)
    times = np.array([bench.epoch(index % devices) for index in range(_WARM_UP + epochs)])[_WARM_UP:]
    return DecisionTimes(policy, devices, waiting, times[:, 1] * 1e6, times[:, 0] * 1e6)


def peak_memory_mb() -> float:
    """The most memory this process has had in use, in MB; NaN where the system does not say."""
    try:
        import resource
    except ImportError:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class _Bench:
    """A controller with a full fleet and a long queue, driven one device and one period at a time."""

    def __init__(self, policy: str, devices: int, waiting: int) -> None:
        workload = load_trace(WORKLOAD, requests=20_000, seed=0)
        self._prompts: IntArray = workload.prompt_tokens
        self._outputs: IntArray = workload.output_tokens
        self._now_s, self._next_id, self._waiting = 0.0, 0, waiting
        self._tick_s = PERIOD_S / devices
        fleet = [Device(f"device-{index}", BATCH_SLOTS, KV_TOKENS, period_s=PERIOD_S) for index in range(devices)]
        self._controller = Controller(build_policy(policy, PolicySettings()), fleet, build_predictor("none"))
        for device in range(devices):
            self._fill(device)
        self._queue_up()

    def epoch(self, device: int) -> tuple[float, float]:
        """One period of one device; returns the seconds that the update and the decision took."""
        self._now_s += self._tick_s
        controller = self._controller
        controller.advanced(device, 1, PERIOD_S)
        for request_id in controller.state.fleet.ledgers[device].ids[:2].tolist():
            controller.finished(self._now_s, request_id, int(self._outputs[request_id % len(self._outputs)]))
        start = perf_counter()
        controller.update(self._now_s)
        updated = perf_counter()
        decision = controller.decide(self._now_s, [device])
        decided = perf_counter()
        for assignment in decision.assignments:
            controller.started(assignment.request_id, prefilled=True)
        self._queue_up()
        return updated - start, decided - updated

    def _fill(self, device: int) -> None:
        """Give a device running requests until most of its KV is used."""
        fleet = self._controller.state.fleet
        while fleet.kv_tokens_used[device] < _FILL * KV_TOKENS and fleet.open_leases[device] < BATCH_SLOTS:
            request = self._request()
            fleet.open(request, device, 0)
            fleet.start(request.id, prefilled=True)

    def _queue_up(self) -> None:
        while len(self._controller.state.queue) < self._waiting:
            self._controller.enqueue(self._now_s, self._request())

    def _request(self) -> Request:
        request_id, self._next_id = self._next_id, self._next_id + 1
        prompt_tokens = int(self._prompts[request_id % len(self._prompts)])
        return Request(request_id, self._now_s, prompt_tokens)
