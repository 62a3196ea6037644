from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.queue import IntArray
from bidroute.core.state import RoutingState
from bidroute.errors import BidrouteError, ConfigError
from bidroute.policies.base import Decision
from bidroute.simulator import EngineConfig, Outcome, Scenario, affine_decode, simulate, summary
from tests.simulator.helpers import (
    NO_SHARED,
    SHARED,
    BlindCycle,
    Cycle,
    Fifo,
    OneClass,
    ShortestQueue,
    azure,
    devices,
    workload,
)

SECOND_PER_PERIOD = affine_decode(1.0, 0.0, 0.0)


def test_shortest_queue_sees_who_has_finished() -> None:
    rows = [(0.0, 1, 2), (0.1, 1, 9), (2.0, 1, 1), (2.1, 1, 1)]
    result = simulate(Scenario(workload(rows), devices(2, 1, 100), SECOND_PER_PERIOD), ShortestQueue(), OneClass())
    assert result.device.tolist() == [0, 1, 0, 0]
    assert result.end_s.tolist() == pytest.approx([2.0, 9.1, 3.0, 4.0])


@pytest.mark.parametrize("policy", [Cycle, BlindCycle])
def test_a_device_too_small_refuses_what_it_could_never_complete(policy: type[Cycle]) -> None:
    fleet = (Device("small", 2, 10), Device("large", 2, 40))
    rows = [(0.0, 5, 5), (0.0, 5, 30), (0.0, 5, 30), (0.0, 5, 60)]
    result = simulate(Scenario(workload(rows), fleet, SECOND_PER_PERIOD), policy(), OneClass())
    refused, finished = Outcome.REFUSED, Outcome.FINISHED
    assert result.status.tolist() == [finished, finished, refused, refused]


class Forgets(Cycle):
    name = "forgets"

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        return Decision()


class Miscounts(Cycle):
    name = "miscounts"

    def choose_blindly(self, count: int, state: RoutingState) -> IntArray:
        return np.full(count, 7)


def test_breaches_of_the_contract_are_named() -> None:
    scenario = Scenario(workload([(0.0, 1, 1)]), devices(2, 1, 100), SECOND_PER_PERIOD)
    with pytest.raises(BidrouteError, match="forgets dispatches on arrival but left 1 requests"):
        simulate(scenario, Forgets(), OneClass())
    with pytest.raises(BidrouteError, match="miscounts: choose_blindly gave 1 choices for 1 requests on 2 devices"):
        simulate(scenario, Miscounts(), OneClass())
    with pytest.raises(ConfigError, match="3 predicted_tokens for 1 requests"):
        simulate(scenario, Cycle(), OneClass(), predicted_tokens=np.ones(3))


def test_waiting_times_match_the_single_server_queue() -> None:
    """One slot, one token each: M/D/1, whose mean wait is ρ·service / (2·(1−ρ))."""
    generator = np.random.default_rng(11)
    n, load = 60_000, 0.6
    times = np.cumsum(generator.exponential(1.0 / load, n))
    rows = [(float(t), 1, 1) for t in times]
    result = simulate(Scenario(workload(rows), devices(1, 1, 100), SECOND_PER_PERIOD), BlindCycle(), OneClass())
    wait_s = float(np.mean(result.start_s - result.arrival_s))
    assert wait_s == pytest.approx(load / (2 * (1 - load)), rel=0.05)


@pytest.mark.skipif(not SHARED.is_dir(), reason=NO_SHARED)
@pytest.mark.parametrize(
    ("speedup", "slots", "kv_tokens", "policy", "mean", "p50", "p95", "p99", "preemptions"),
    [
        (17, 64, 100_000, ShortestQueue, 7.56, 7.60, 13.2, 14.5, 0),
        (17, 64, 100_000, Fifo, 7.56, 7.63, 13.2, 14.4, 0),
        (13, 128, 50_000, ShortestQueue, 13.65, 13.59, 24.9, 27.2, 1046),
    ],
)
def test_the_design_experiment_is_reached(
    speedup: int,
    slots: int,
    kv_tokens: int,
    policy: type[ShortestQueue],
    mean: float,
    p50: float,
    p95: float,
    p99: float,
    preemptions: int,
) -> None:
    """The figures of an independent prototype; ties between equal queues are broken otherwise there."""
    scenario = Scenario(
        azure(6000).sped_up(speedup),
        devices(4, slots, kv_tokens),
        affine_decode(0.006, 5e-5, 5.086e-8),
        engine=EngineConfig(recompute_s_per_token=4e-5),
    )
    result = summary(simulate(scenario, policy(), OneClass()))
    e2e_s = result["e2e_s"]
    assert isinstance(e2e_s, dict)
    assert [e2e_s[key] for key in ("mean", "p50", "p95", "p99")] == pytest.approx([mean, p50, p95, p99], rel=0.04)
    assert result["preemptions"] == pytest.approx(preemptions, rel=0.03)
    assert result["unfinished"] == result["refused"] == 0
