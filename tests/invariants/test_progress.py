"""Invariants 8 and 9: every lease closes, every request that fits starts in time, and what never fits is refused.

The bound (docs/invariants.md): let a request j compete with others that start fresh, within the threshold T of their
arrival. Each is worth at most M (the other terms of the objective); no price exceeds P times the floor price that
enters every ratio; κ is the largest ratio of j's footprint to that of another. Then j ranks first from the wait w at
which its reward per price is the largest whatever the prices: reward_j(w)·pace_j ≥ M·κ·(1 + P). From then on at most
`max_skips` others are taken past it, each of them runs for at most L, and after that it has the device for itself.
"""

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.errors import NeverFitsError
from bidroute.lengths import OneClass, Oracle
from bidroute.policies import Controller
from bidroute.policies.bid_price import DEFAULT_MAX_SKIPS, BidPrice
from bidroute.policies.bids import PRICE_FLOOR
from tests.invariants.runs import Job, random_jobs, run, run_unlike

THRESHOLD_S = 30.0


class Watched(BidPrice):
    """Remembers the highest price it ever held, in floor prices."""

    highest = 0.0

    def update(self, now_s: float, state: RoutingState) -> None:
        super().update(now_s, state)
        prices, scale = self.prices(), self._updates.price_scale
        if scale > 0.0:
            top = max(prices.slot_price.max(initial=0.0), prices.kv_price.max(initial=0.0))
            self.highest = max(self.highest, top / (PRICE_FLOOR * scale))


def wait_to_rank_first_s(objective: Objective, service_s: float, least_worth: float) -> float:
    """The wait at which a request of this service time is worth at least this much."""
    wait_s = np.arange(0.0, 1e5)
    terms = objective.terms(wait_s, np.full(len(wait_s), service_s), *np.ones(1), np.ones(1), np.ones(1), THRESHOLD_S)
    reward = sum(terms.values()) * THRESHOLD_S / (THRESHOLD_S + service_s)
    return float(wait_s[np.argmax(reward >= least_worth)])


def footprint(job: Job, batch_slots: int, kv_tokens: int) -> float:
    _, prompt, output = job
    return output / batch_slots + (prompt * output + output * (output + 1) / 2) / kv_tokens


@pytest.mark.parametrize("max_skips", [0, DEFAULT_MAX_SKIPS])
def test_invariant_9_a_stream_of_small_requests_does_not_starve_a_large_one(max_skips: int) -> None:
    """The small ones alone keep the device so full that the large one, which needs most of it, never just fits."""
    batch_slots, kv_tokens, small_tokens = 8, 400, 10
    small = [(float(second), 40, small_tokens) for second in range(3000) for _ in range(1 if second % 3 else 0)]
    large = (5.0, 300, 20)
    jobs = sorted([*small, large])
    objective = Objective(threshold_s=THRESHOLD_S)
    policy = Watched(objective, max_skips=max_skips)
    result = run(jobs, batch_slots, kv_tokens, policy=policy)
    wait_s = result.start_s - result.arrival_s
    j = jobs.index(large)
    others_s = np.delete(wait_s, j)

    fresh_worth = sum(float(term.max()) for term in _worth_when_fresh(objective).values())
    ratio = footprint(large, batch_slots, kv_tokens) / footprint(small[0], batch_slots, kv_tokens)
    ranks_first_s = wait_to_rank_first_s(objective, large[2], fresh_worth * ratio * (1.0 + policy.highest))
    bound_s = ranks_first_s + (max_skips + 1) * small_tokens
    assert result.finished == len(jobs)
    assert np.median(others_s) < THRESHOLD_S  # the others are fresh, as the bound asks
    assert 0.0 < wait_s[j] <= bound_s


def _worth_when_fresh(objective: Objective) -> dict[str, np.ndarray]:
    one = np.ones(1)
    return objective.terms(0.0 * one, 0.0 * one, 0.0 * one, one, one, THRESHOLD_S)


@pytest.mark.parametrize("lengths", ["oracle", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_invariant_9_everybody_is_served_under_overload(seed: int, lengths: str) -> None:
    jobs = random_jobs(seed, 120, span_s=60, longest=40, prompt=60)
    assert run(jobs, 3, 120, lengths=lengths).finished == 120


@pytest.mark.parametrize("seed", range(3))
def test_invariant_9_who_is_held_for_a_faster_device_starts_within_its_period(seed: int) -> None:
    """Room for all: nobody waits longer than for one boundary of a device that is worth waiting for."""
    jobs = random_jobs(seed, 60, span_s=60, longest=40, prompt=60)
    result = run_unlike(jobs, [1.0, 2.5, 4.0], 64, 100_000)
    assert result.finished == 60
    assert np.max(result.start_s - result.arrival_s) <= 2.5
    assert np.count_nonzero(result.device == 0) > 30


@pytest.mark.parametrize("seed", range(3))
def test_invariant_9_everybody_is_served_by_unlike_devices_under_overload(seed: int) -> None:
    jobs = random_jobs(seed, 120, span_s=60, longest=40, prompt=60)
    result = run_unlike(jobs, [1.0, 2.5, 4.0], 3, 120)
    assert result.finished == 120
    assert set(result.device.tolist()) == {0, 1, 2}


def test_invariant_9_what_never_fits_is_refused_at_once() -> None:
    controller = Controller(BidPrice(Objective()), [Device("d", 4, 10), Device("e", 4, 20)], OneClass())
    with pytest.raises(NeverFitsError, match="needs 21 KV tokens; the largest device holds 20"):
        controller.enqueue(0.0, Request(0, 0.0, 20))
    controller.enqueue(0.0, Request(1, 0.0, 19))
    assert len(controller.state.queue) == 1
    certain = Controller(BidPrice(Objective()), [Device("d", 4, 20)], Oracle())
    with pytest.raises(NeverFitsError, match="needs 21 KV tokens"):
        certain.enqueue(0.0, Request(0, 0.0, 15, predicted_tokens=6))


def test_invariant_9_an_empty_device_takes_the_best_request_whatever_its_price() -> None:
    policy = BidPrice(Objective())
    controller = Controller(policy, [Device("d", 4, 100)], OneClass())
    for i in range(3):
        controller.enqueue(0.0, Request(i, 0.0, 30 - i))
    policy.shadow_prices.fit_fleet(1)
    policy.shadow_prices.slot_price[:] = 1e9
    assert [assignment.request_id for assignment in controller.decide(0.0, [0]).assignments] == [2]


def test_invariant_8_open_leases_are_the_occupancy_and_none_is_left() -> None:
    """Through a run with preemptions; tests/core/test_ledger_stateful.py has cancels, failures and resizes."""
    policy = Watched(Objective(), risk_z=0.0)
    seen: list[RoutingState] = []
    policy.decide = _remembering(policy, seen)  # type: ignore[method-assign]
    result = run(random_jobs(2, 120, span_s=60, longest=40, prompt=10), 4, 100, lengths="none", policy=policy)
    assert result.finished == 120
    assert result.preemptions.sum() > 0
    assert seen[-1].fleet.totals[:5].tolist() == [[0]] * 5
    assert len(seen[-1].queue) == 0


def _remembering(policy: BidPrice, seen: list[RoutingState]):  # type: ignore[no-untyped-def]
    decide = policy.decide

    def remember(now_s: float, state: RoutingState, devices: list[int]):  # type: ignore[no-untyped-def]
        assert np.all(state.fleet.open_leases <= state.fleet.batch_slots)
        for ledger, count in zip(state.fleet.ledgers, state.fleet.open_leases, strict=True):
            assert ledger.n == count
        seen.append(state)
        return decide(now_s, state, devices)

    return remember
