"""How fast things are here: the simulator, decisions and price updates over (devices, waiting), and memory."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time

import numba
import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray, IntArray
from bidroute.core.requests import Request
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, PolicySettings, build_policy
from bidroute.simulator import EngineConfig, Scenario, parse_decode_latency, parse_prefill_latency, simulate
from bidroute.traces import load_trace

SIZES = ((4, 100), (64, 1000), (256, 4000), (1024, 10_000))
AT_ONCE_SIZES = SIZES[:2]  # where all devices start a period in the same moment
POLICIES = ("bid_price", "fifo+safety", "join_shortest_queue")
WORKLOAD = "builtin:azure-conv-like"
BATCH_SLOTS = 64
KV_TOKENS = 80_000
PERIOD_S = 0.01
_FILL = 0.9  # of a device's KV before the first timed decision
_WARM_UP = 20  # decisions before the clock counts, at least
_WARM_UP_PERIODS = 2  # of every device: in the first ones the fleet fills up, and steadies after that


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
    """Wall time of decisions and of price updates, float64[epochs] each, in microseconds.

    At each of them `offered` of the devices took requests. A policy that dispatches on arrival has 1 waiting.
    """

    policy: str
    devices: int
    waiting: int
    offered: int
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


def decision_times(
    policy: str, devices: int, waiting: int, epochs: int = 200, *, at_once: bool = False
) -> DecisionTimes:
    """Time a policy on a busy fleet: at every epoch one device starts a period and `waiting` requests queue.

    Between epochs the device's oldest requests end and as many arrive as were released. `at_once`: all devices start
    a period at every epoch. A policy that dispatches on arrival is asked about one request and all devices.
    """
    bench = _Bench(policy, devices, waiting)
    starting = [list(range(devices))] if at_once else [[device] for device in range(devices)]
    warm_up = max(_WARM_UP, _WARM_UP_PERIODS * len(starting))
    times = [bench.epoch(starting[index % len(starting)]) for index in range(warm_up + epochs)]
    update_s, decide_s = np.array(times[warm_up:]).T
    offered = devices if bench.dispatches else len(starting[0])
    return DecisionTimes(policy, devices, bench.waiting, offered, decide_s * 1e6, update_s * 1e6)


def machine() -> dict[str, str]:
    """What the figures depend on: the processor, and the versions of what runs on it."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def _processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not on this system
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
        self._now_s, self._next_id = 0.0, 0
        self._tick_s = PERIOD_S / devices
        fleet = [Device(f"device-{index}", BATCH_SLOTS, KV_TOKENS, period_s=PERIOD_S) for index in range(devices)]
        self._controller = Controller(build_policy(policy, PolicySettings()), fleet, build_predictor("none"))
        self.dispatches = self._controller.dispatches_on_arrival
        self.waiting = 1 if self.dispatches else waiting
        for device in range(devices):
            self._fill(device)
        self._queue_up()

    def epoch(self, starting: list[int]) -> tuple[float, float]:
        """A period of the devices `starting`; returns the seconds that the update and the decision took."""
        self._now_s += self._tick_s * len(starting)
        controller = self._controller
        for device in starting:
            self._run_period(device)
        offered = controller.state.fleet.accepting() if self.dispatches else starting
        start = perf_counter()
        controller.update(self._now_s)
        updated = perf_counter()
        decision = controller.decide(self._now_s, offered)
        decided = perf_counter()
        for assignment in decision.assignments:
            controller.started(assignment.request_id, prefilled=True)
        self._queue_up()
        return updated - start, decided - updated

    def _run_period(self, device: int) -> None:
        """Everybody makes a token, and two requests end."""
        self._controller.advanced(device, 1, PERIOD_S)
        for request_id in self._controller.state.fleet.ledgers[device].ids[:2].tolist():
            output_tokens = int(self._outputs[request_id % len(self._outputs)])
            self._controller.finished(self._now_s, request_id, output_tokens)

    def _fill(self, device: int) -> None:
        """Give a device running requests until most of its KV is used."""
        fleet = self._controller.state.fleet
        while fleet.kv_tokens_used[device] < _FILL * KV_TOKENS and fleet.open_leases[device] < BATCH_SLOTS:
            request = self._request()
            fleet.open(request, device, 0)
            fleet.start(request.id, prefilled=True)

    def _queue_up(self) -> None:
        while len(self._controller.state.queue) < self.waiting:
            self._controller.enqueue(self._now_s, self._request())

    def _request(self) -> Request:
        request_id, self._next_id = self._next_id, self._next_id + 1
        prompt_tokens = int(self._prompts[request_id % len(self._prompts)])
        return Request(request_id, self._now_s, prompt_tokens)
