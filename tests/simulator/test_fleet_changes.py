"""Devices that are lost or join while a run is under way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.errors import ConfigError
from bidroute.lengths import build_predictor
from bidroute.policies import build_policy
from bidroute.simulator import (
    FleetChange,
    Outcome,
    RecordOptions,
    RunResult,
    Scenario,
    affine_decode,
    affine_prefill,
    simulate,
)
from bidroute.simulator.dispatch import run_dispatch
from bidroute.simulator.host import Host
from bidroute.simulator.layout import D_FREE
from tests.simulator.helpers import Cycle, Fifo, OneClass, ShortestQueue, devices, workload

SECOND_PER_PERIOD = affine_decode(1.0, 0.0, 0.0)


def run(rows: list[tuple[float, int, int]], changes: list[FleetChange], policy: object = None, n: int = 2) -> RunResult:
    scenario = Scenario(workload(rows), devices(n, 1, 100), SECOND_PER_PERIOD, changes=tuple(changes))
    return simulate(scenario, policy or Fifo(), OneClass())  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [Fifo, ShortestQueue])
def test_what_was_on_a_lost_device_starts_again_elsewhere(policy: type) -> None:
    result = run([(0.0, 1, 5), (0.0, 1, 3)], [FleetChange(2.5, 0, joins=False)], policy())
    assert result.device.tolist() == [1, 1]
    assert result.end_s.tolist() == [8.0, 3.0]
    assert result.first_token_s.tolist() == [4.0, 1.0]
    assert result.wasted_tokens == 1 + 2  # a prompt token and two that were made


def test_one_that_joins_takes_its_part() -> None:
    rows = [(0.0, 1, 10), (0.0, 1, 4), (0.0, 1, 4)]
    assert run(rows, [], n=1).end_s.tolist() == [10.0, 14.0, 18.0]
    assert run(rows, [FleetChange(2.0, 1, joins=True)]).end_s.tolist() == [10.0, 6.0, 10.0]


def test_a_blind_policy_looks_where_the_fleet_changes() -> None:
    rows = [(0.0, 1, 1), (5.0, 1, 1), (6.0, 1, 1)]
    result = run(rows, [FleetChange(3.0, 1, joins=True), FleetChange(4.0, 0, joins=False)], Cycle())
    assert result.device.tolist() == [0, 1, 1]


def test_what_fits_only_a_device_that_is_gone_is_refused() -> None:
    fleet = (Device("small", 2, 10), Device("large", 2, 100))
    rows = [(0.0, 50, 9), (0.0, 50, 9), (0.0, 50, 9), (0.0, 2, 2), (6.0, 50, 2)]
    change = FleetChange(5.0, 1, joins=False)
    result = simulate(Scenario(workload(rows), fleet, SECOND_PER_PERIOD, changes=(change,)), Fifo(), OneClass())
    assert result.status.tolist() == [Outcome.REFUSED] * 3 + [Outcome.FINISHED, Outcome.REFUSED]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([FleetChange(1.0, 5, joins=False)], "device 5 leaves at 1 s; expected one that is there"),
        ([FleetChange(1.0, 0, joins=False), FleetChange(2.0, 0, joins=False)], "device 0 leaves at 2 s"),
        ([FleetChange(1.0, 0, joins=True)], "device 0 joins at 1 s; expected the next that is not there yet, 1"),
        ([FleetChange(1.0, 0, joins=False), FleetChange(1.0, 1, joins=False)], "no device is left at 1 s"),
    ],
)
def test_changes_that_make_no_sense_are_refused(changes: list[FleetChange], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Scenario(workload([(0.0, 1, 1)]), devices(2, 1, 100), SECOND_PER_PERIOD, changes=tuple(changes))


def test_times_and_modes_are_checked() -> None:
    with pytest.raises(ConfigError, match="fleet change at nan s"):
        FleetChange(float("nan"), 0, joins=False)
    with pytest.raises(ConfigError, match="expected mode decode or aggregated"):
        Scenario(
            *(workload([(0.0, 1, 1)]), devices(2, 1, 100), SECOND_PER_PERIOD, affine_prefill(1.0, 0.0)),
            mode="disaggregated",
            prefill_workers=1,
            changes=(FleetChange(1.0, 0, joins=False),),
        )


jobs = st.lists(
    st.tuples(st.integers(0, 60).map(lambda ms: ms / 1000), st.integers(0, 12), st.integers(1, 25)),
    min_size=1,
    max_size=30,
)
CHANGES = (FleetChange(0.1, 0, joins=False), FleetChange(0.2, 3, joins=True), FleetChange(0.4, 2, joins=False))


@given(
    rows=jobs, slots=st.integers(1, 4), kv_tokens=st.integers(40, 90), mode=st.sampled_from(["decode", "aggregated"])
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("central", [False, True], ids=["dispatch", "central"])
def test_everybody_ends_and_nothing_is_left_behind(
    central: bool, rows: list[tuple[float, int, int]], slots: int, kv_tokens: int, mode: str
) -> None:
    times = np.cumsum([gap for gap, _, _ in rows])
    work = workload([(float(t), prompt, output) for t, (_, prompt, output) in zip(times, rows, strict=True)])
    scenario = Scenario(
        work,
        devices(4, slots, kv_tokens),
        affine_decode(0.004, 1e-3, 1e-5),
        affine_prefill(0.002, 1e-4),
        mode,
        changes=CHANGES,
    )
    result = simulate(scenario, Fifo() if central else ShortestQueue(), OneClass())
    assert np.all(result.status == Outcome.FINISHED)
    assert np.all(result.end_s > result.arrival_s)
    assert not np.any(result.end_s[result.device == 0] > 0.1 + 1e-9)
    if not central:
        host = Host(scenario, ShortestQueue(), OneClass(), None, RecordOptions())
        run_dispatch(host)
        assert not host.controller.state.fleet.open_leases.any()
        assert np.array_equal(host.engines.devices[:, D_FREE], host.engines.total_blocks)
        assert not host.engines.growth.any()


def test_bid_price_goes_on_and_its_prices_are_recorded() -> None:
    rows = [(k * 0.05, 20, 30) for k in range(120)]
    scenario = Scenario(
        workload(rows),
        devices(3, 4, 400),
        affine_decode(0.01, 1e-3, 0.0),
        changes=(FleetChange(1.0, 0, joins=False), FleetChange(3.0, 2, joins=True)),
    )
    result = simulate(scenario, build_policy("bid_price"), build_predictor("none"), record=RecordOptions(0.5))
    assert result.finished == len(rows)
    assert np.isnan(result.timeline.slot_price[0, 2])
    assert np.isfinite(result.timeline.slot_price[-1]).all()
