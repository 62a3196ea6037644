"""The decision in one compiled call against the same parts, put together in Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.core.state import RoutingState
from bidroute.policies.admission import Admission
from bidroute.policies.alternatives import consider
from bidroute.policies.bids import Bidding, moment_of
from bidroute.policies.decision_kernels import decide
from bidroute.policies.release_kernels import REASONS, Limits, release
from bidroute.pricing.prices import ShadowPrices
from tests.policies.states import state

LIMITS = Limits(pairs=10_000, spare=48, idle_cut=0.5)


def random_state(random: np.random.Generator) -> RoutingState:
    """Unlike devices, one of which may be draining, with leases, and requests that wait."""
    periods = random.choice([0.01, 0.02, 0.05], int(random.integers(1, 6)))
    devices = [Device("d", int(random.integers(1, 5)), int(random.integers(60, 300)), 1, period) for period in periods]
    leases = [
        (int(random.integers(len(devices))), int(random.integers(0, 40)), int(random.integers(0, 9)), 0, 0)
        for _ in range(random.integers(0, 8))
    ]
    jobs = [
        (int(random.integers(0, 50)), int(random.integers(2)), int(random.choice([0, 0, 5, 40])))
        for _ in range(random.integers(1, 12))
    ]
    made = state(devices, jobs, leases, arrival_s=random.uniform(0, 5, len(jobs)).round().tolist())
    if len(devices) > 1 and random.random() < 0.3:
        made.fleet.drain(len(devices) - 1)
    for device in range(len(devices)):
        made.fleet.observe_pace(device, 3, 3 * float(periods[device]) * random.uniform(0.5, 1.5))
    return made


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_one_call_decides_as_its_parts_do(seed: int) -> None:
    random = np.random.default_rng(seed)
    waiting, prices = random_state(random), ShadowPrices()
    fleet, queue = waiting.fleet, waiting.queue
    prices.fit_fleet(len(fleet))
    prices.slot_price[:] = 0.02 * random.exponential(1.0, prices.slot_price.shape)
    offered = np.sort(random.permutation(fleet.active)[: random.integers(1, len(fleet.active) + 1)])
    before, skips, held = prices.snapshot(), queue.skips.copy(), np.empty((2, REASONS), dtype=np.int64)

    bidding = Bidding(Objective(), prices, 0.5, 4.0, fleet.paces.marginal_s(fleet.open_leases))
    choice = consider(fleet, offered, bidding.pace_s, len(queue))
    admission, chosen = Admission(max_skips=2), np.empty(20, np.int64)
    admission.begin(waiting, choice.devices)
    fields = bidding.terms(6.0, waiting), queue.columns(), prices.view(waiting), admission.view
    rows = release(*fields, LIMITS, choice, chosen, held[0])
    expected = queue.ids[rows].tolist(), chosen[rows].tolist(), queue.skips.tolist(), prices.slot_price.copy()

    prices.slot_price[:], prices.kv_price[:] = before.slot_price, before.kv_price
    queue.skips[:] = skips
    taken = np.empty((2, 20), dtype=np.int64)
    count = decide(
        tuple(moment_of(6.0, 4.0, 0.5)),
        Objective().weights(),
        tuple(queue.columns()),
        tuple(fleet.columns()),
        tuple(prices.view(waiting)),
        (prices.columns(waiting.lengths).mean_tokens, *admission.residuals.refresh(waiting.lengths)),
        admission.rule,
        tuple(LIMITS),
        offered,
        taken,
        chosen,
        held[1],
    )
    assert (*taken[:, :count].tolist(), queue.skips.tolist()) == (*expected[:2], expected[2])
    np.testing.assert_array_equal(prices.slot_price, expected[3])
    np.testing.assert_array_equal(held[0], held[1])
