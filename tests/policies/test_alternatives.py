"""Which devices are waited for, and who is held for them."""

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.policies.alternatives import consider
from bidroute.policies.alternatives_kernels import FASTER_BY, FASTER_BY_WHERE_FEW_WAIT, FEW_WAIT, MOST_ALTERNATIVES
from bidroute.policies.base import Hold
from bidroute.policies.bid_price import BidPrice
from tests.policies.states import state

FAST, SLOW = Device("fast", 2, 1000, period_s=0.01), Device("slow", 8, 1000, period_s=0.05)
RUNS = (0, 10, 5, 0, 40)  # a lease on the fast device


def considered(made: RoutingState, *offered: int, waiting: int = FEW_WAIT) -> list[int]:
    found = consider(made.fleet, np.array(offered), made.fleet.period_s, waiting)
    assert found.offered == len(offered)
    later = found.devices[found.offered :]
    np.testing.assert_array_equal(found.later_s[found.offered :], made.fleet.period_s[later])
    assert not found.later_s[: found.offered].any()
    np.testing.assert_array_equal(found.devices[: found.offered], offered)
    return [int(g) for g in later]


def test_a_faster_device_in_the_middle_of_a_period_is_an_alternative() -> None:
    assert considered(state([FAST, SLOW], leases=[RUNS]), 1) == [0]


def test_no_alternative() -> None:
    """Offered itself; empty (its host would offer it); draining; slower; hardly faster."""
    assert considered(state([FAST, SLOW], leases=[RUNS]), 0, 1) == []
    assert considered(state([FAST, SLOW]), 1) == []
    draining = state([FAST, SLOW], leases=[RUNS])
    draining.fleet.drain(0)
    assert considered(draining, 1) == []
    assert considered(state([FAST, SLOW], leases=[(1, 10, 5, 0, 40)]), 0) == []
    hardly = Device("hardly", 2, 1000, period_s=SLOW.period_s / FASTER_BY_WHERE_FEW_WAIT * 1.01)
    assert considered(state([hardly, SLOW], leases=[RUNS]), 1) == []


def test_a_device_that_is_hardly_faster_is_an_alternative_only_where_few_wait() -> None:
    faster = Device("faster", 2, 1000, period_s=SLOW.period_s / FASTER_BY * 1.01)
    made = state([faster, SLOW], leases=[RUNS])
    assert considered(made, 1, waiting=FEW_WAIT) == [0]
    assert considered(made, 1, waiting=FEW_WAIT + 1) == []


def test_a_device_that_processes_prompts_is_an_alternative_only_where_it_is_much_faster() -> None:
    for faster_by, found in ((FASTER_BY / 1.01, []), (FASTER_BY * 1.01, [0])):
        made = state([Device("faster", 2, 1000, period_s=SLOW.period_s / faster_by), SLOW])
        made.fleet.open(Request(9, 0.0, 10), 0, 0)
        made.fleet.start(9, prefilled=False)
        assert considered(made, 1) == found


def test_the_fastest_alternatives_are_kept() -> None:
    periods = np.random.default_rng(0).permutation(np.linspace(0.01, 0.02, 20))
    devices = [Device("d", 2, 1000, period_s=period_s) for period_s in periods]
    made = state([*devices, SLOW], leases=[(g, 10, 5, 0, 40) for g in range(20)])
    assert considered(made, 20) == np.argsort(periods)[:MOST_ALTERNATIVES].tolist()


def test_a_request_is_held_for_the_faster_device_and_starts_there() -> None:
    """30 tokens: 1.5 s on the slow device now, 0.31 s on the fast one after a period of 0.01 s."""
    waiting, policy = state([FAST, SLOW], [(10, 0, 30)], leases=[RUNS]), BidPrice(Objective())
    held = policy.decide(1.0, waiting, (1,))
    assert (held.assignments, held.held) == ([], {Hold.FASTER: 1})
    (told,) = policy.explain(1.0, waiting, (1,), [0])
    assert (told.held_by, told.device) == (Hold.FASTER, 0)
    assert told.value == pytest.approx(sum(told.reward.values()) - sum(told.price.values()))
    (started,) = policy.decide(1.01, waiting, (0, 1)).assignments
    assert (started.request_id, started.device) == (0, 0)


def test_a_request_too_short_to_gain_by_waiting_is_not_held() -> None:
    """One token: 0.05 s on the device offered; 0.03 s and as much of a wait on the other."""
    waiting = state([Device("d", 2, 1000, period_s=0.03), SLOW], [(10, 0, 1)], leases=[RUNS])
    (started,) = BidPrice(Objective()).decide(1.0, waiting, (1,)).assignments
    assert started.device == 1


def test_only_as_many_are_held_as_the_faster_device_has_room_for() -> None:
    """The one that runs there goes on for long, so there is one place and no other soon."""
    waiting = state([FAST, SLOW], [(10, 0, 30)] * 4, leases=[(0, 10, 5, 0, 900)], arrival_s=[0.0] * 4)
    decision = BidPrice(Objective()).decide(1.0, waiting, (1,))
    assert [a.device for a in decision.assignments] == [1, 1, 1]
    assert decision.held == {Hold.FASTER: 1}


def test_requests_are_held_for_room_that_comes_soon_as_long_as_few_wait_for_it() -> None:
    """30 tokens take 1.5 s on the slow device; the fast one is full, ends one every 0.2 s, and takes 0.3 s for them."""
    leases = [(0, 10, 20, 0, 60)] * 2  # 40 tokens left at 0.01 s each
    for waiting_requests, held in ((1, 1), (4, 4), (9, 5)):
        jobs = [(10, 0, 30)] * waiting_requests
        waiting = state([FAST, SLOW], jobs, leases=leases, arrival_s=[0.0] * waiting_requests)
        decision = BidPrice(Objective()).decide(1.0, waiting, (1,))
        assert decision.held.get(Hold.FASTER, 0) == held
        assert [a.device for a in decision.assignments] == [1] * (waiting_requests - held)
        told = BidPrice(Objective()).explain(1.0, waiting, (1,), list(range(waiting_requests)))
        assert [one.held_by for one in told].count(Hold.FASTER) == held
        assert [one.held_by for one in told].count(None) == waiting_requests - held


def test_nobody_is_held_for_a_device_whose_kv_would_not_be_safe_for_long() -> None:
    """Room for its prompt now, not for what both grow to."""
    small = Device("small", 2, 300, period_s=0.01)
    waiting = state([small, SLOW], [(10, 0, 200)], leases=[(0, 10, 5, 0, 280)])
    (started,) = BidPrice(Objective(threshold_s=60.0)).decide(1.0, waiting, (0, 1)).assignments or [None]
    assert started is None or started.device == 1


def test_holding_counts_as_no_skip_of_one_that_does_not_fit() -> None:
    """The first needs more KV than anybody has left; the second is held for the fast device."""
    leases = [RUNS, (1, 500, 1, 0, 400)]
    waiting = state([FAST, SLOW], [(990, 0, 5), (10, 0, 30)], leases, arrival_s=[-1000.0, 0.0])
    decision = BidPrice(Objective(threshold_s=10.0)).decide(1.0, waiting, (1,))
    assert decision.assignments == []
    assert waiting.queue.skips.tolist() == [0, 0]
