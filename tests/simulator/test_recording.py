from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies import build_policy
from bidroute.policies.base import Explanation, PriceSnapshot
from bidroute.simulator import RecordOptions, Scenario, affine_decode, simulate
from bidroute.simulator.recording import near_prices
from bidroute.traces import load_trace
from tests.simulator.helpers import Cycle, Fifo, OneClass, devices, workload

SECOND_PER_PERIOD = affine_decode(1.0, 0.0, 0.0)


class Priced(Fifo):
    """First come, first served, with prices and explanations to show."""

    name = "priced"

    def prices(self) -> PriceSnapshot:
        slot = np.array([[4.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
        return PriceSnapshot(np.array([0, 1, 3, 4, 5, 6, 7, 8, 9]), slot, slot / 10)

    def explain(
        self, now_s: float, state: RoutingState, devices: Sequence[int], request_ids: Sequence[int]
    ) -> list[Explanation]:
        return [Explanation(r, devices[0], now_s, 0.0, {}, {}, 0.0, 0, len(state.queue), None, []) for r in request_ids]


def test_timeline_samples_the_engines_between_events() -> None:
    rows = [(0.0, 4, 3), (0.0, 4, 2)]
    scenario = Scenario(workload(rows), devices(1, 1, 50), SECOND_PER_PERIOD)
    timeline = simulate(scenario, Priced(), OneClass(), record=RecordOptions(0.5)).timeline
    assert timeline is not None
    assert timeline.time_s.tolist() == [0.5 * k for k in range(len(timeline.time_s))]
    assert timeline.queue.tolist()[1:] == [1] * 5 + [0] * 5
    assert timeline.slots_used[1:10, 0].tolist() == [1] * 9  # one ends at 3, the other at 5
    assert timeline.slots_used[-1, 0] == 0
    assert timeline.kv_used[1:7, 0].tolist() == [5, 5, 6, 6, 7, 5]
    assert timeline.held["order"][-1] == 1
    assert timeline.slot_price[0, 0] == 2.0
    assert timeline.kv_price[0, 0] == pytest.approx(0.2)


def test_timeline_of_a_dispatching_policy_shows_the_engines_own_queues() -> None:
    scenario = Scenario(workload([(0.0, 4, 2)] * 3), devices(2, 1, 50), SECOND_PER_PERIOD)
    timeline = simulate(scenario, Cycle(), OneClass(), record=RecordOptions(0.5)).timeline
    assert timeline is not None
    assert timeline.pending[1].tolist() == [1, 0]
    assert np.isnan(timeline.slot_price).all()
    assert not timeline.queue.any()


def test_explanations_cover_each_epoch_a_request_waited_through() -> None:
    rows = [(0.0, 4, 3), (0.0, 4, 2), (1.5, 4, 1)]
    scenario = Scenario(workload(rows), devices(1, 1, 50), SECOND_PER_PERIOD)
    result = simulate(scenario, Priced(), OneClass(), record=RecordOptions(explain_request_ids=(1,)))
    assert [(e.request_id, e.now_s, e.waiting) for e in result.explanations] == [(1, 0.0, 2), (1, 3.0, 2)]
    assert result.timeline is None


def test_prices_are_weighted_by_the_width_of_their_buckets() -> None:
    slot, kv, tokens = near_prices(Priced().prices(), 1)
    assert (slot.tolist(), kv.tolist()) == ([2.0], pytest.approx([0.2]))
    assert np.isnan(tokens).all()  # it does not price these
    assert np.isnan(near_prices(None, 3)).all()


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_intervals_must_be_positive(interval_s: float) -> None:
    with pytest.raises(ConfigError, match="timeline_interval_s"):
        RecordOptions(interval_s)


def bursts() -> Scenario:
    """Two bursts, each more than the fleet can take at once, with a quiet minute between and after them."""
    arrivals = load_trace("builtin:azure-conv-like", requests=240, seed=0).sped_up(25.0)
    later_s = np.where(np.arange(240) < 120, 0.0, 60.0)
    two = replace(arrivals, arrival_s=arrivals.arrival_s + later_s)
    return Scenario(two, devices(2, 24, 30_000), affine_decode(0.006, 5e-5, 5e-8))


def test_invariant_3_recorded_prices_fall_to_0_once_nobody_waits() -> None:
    timeline = simulate(bursts(), build_policy("bid_price"), OneClass(), record=RecordOptions(0.5)).timeline
    assert timeline is not None
    price = timeline.slot_price.sum(axis=1) + timeline.kv_price.sum(axis=1)
    waits, first = timeline.queue > 0, timeline.time_s < 60.0
    assert min(price[waits & first].max(), price[waits & ~first].max()) > 0.05
    quiet = np.flatnonzero(~waits & first & (timeline.time_s > 5.0))
    assert price[quiet[len(quiet) // 2 :]].max() < 1e-3  # although no decision was taken there
    assert price[-1] < 1e-3


def test_invariant_10_recording_changes_no_decision() -> None:
    for policy in ("bid_price", "fifo+safety", "join_shortest_queue"):
        recorded = simulate(bursts(), build_policy(policy), OneClass(), record=RecordOptions(0.05))
        plain = simulate(bursts(), build_policy(policy), OneClass())
        np.testing.assert_array_equal(recorded.start_s, plain.start_s)
        np.testing.assert_array_equal(recorded.device, plain.device)
        assert recorded.held == plain.held
