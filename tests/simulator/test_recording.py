from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies.base import Explanation, PriceSnapshot
from bidroute.simulator import RecordOptions, Scenario, affine_decode, simulate
from bidroute.simulator.recording import near_prices
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
    assert near_prices(Priced().prices(), 1).tolist() == [[2.0], pytest.approx([0.2])]
    assert np.isnan(near_prices(None, 3)).all()


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_intervals_must_be_positive(interval_s: float) -> None:
    with pytest.raises(ConfigError, match="timeline_interval_s"):
        RecordOptions(interval_s)
