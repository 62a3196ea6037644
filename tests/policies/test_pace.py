"""The marginal pace, in closed form for an affine period."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.requests import Request
from bidroute.policies.pace import PaceTracker
from bidroute.policies.pace_kernels import marginal_pace

EMPTY_S, PER_REQUEST_S = 0.006, 0.001


def fleet(*prior_s: float) -> Fleet:
    return Fleet([Device("d", 64, 100_000, period_s=period_s) for period_s in prior_s])


def ran(fleet: Fleet, device: int, batch: int) -> None:
    """The device holds `batch` requests and has run so long that its period is that of this batch."""
    for lease in range(int(fleet.open_leases[device]), batch):
        fleet.open(Request(1000 * device + lease, 0.0, 1), device, 0)
    fleet.advance(device, 1000, 1000 * (EMPTY_S + PER_REQUEST_S * batch))


def test_one_more_costs_its_own_tokens_and_the_delay_of_the_others() -> None:
    tracker, devices = PaceTracker(), fleet(0.05)
    for batch in (1, 10):
        ran(devices, 0, batch)
        marginal_s = tracker.marginal_s(devices)
    # a + s·b for itself, and s for each of the others, b − 1 of which came after the shortest period
    assert marginal_s.tolist() == pytest.approx([EMPTY_S + PER_REQUEST_S * 10 + PER_REQUEST_S * 9])


def test_an_empty_device_is_expected_to_run_as_fast_as_it_ever_did() -> None:
    tracker, devices = PaceTracker(), fleet(0.05)
    for batch in (1, 10):
        ran(devices, 0, batch)
        tracker.marginal_s(devices)
    for lease in range(10):
        devices.close(lease)
    assert tracker.marginal_s(devices).tolist() == pytest.approx([EMPTY_S + PER_REQUEST_S])


def test_before_anything_ran_the_priors_count() -> None:
    assert PaceTracker().marginal_s(fleet(0.05, 0.02)).tolist() == [0.05, 0.02]


def test_one_that_never_ran_falls_short_of_its_prior_as_the_others_did() -> None:
    tracker, devices = PaceTracker(), fleet(0.014, 0.05)
    ran(devices, 0, 1)
    assert tracker.marginal_s(devices).tolist() == pytest.approx([0.007, 0.025])


def test_a_device_that_joins_is_counted() -> None:
    tracker, devices = PaceTracker(), fleet(0.05)
    tracker.marginal_s(devices)
    devices.join(Device("e", 64, 100_000, period_s=0.03))
    assert tracker.marginal_s(devices).tolist() == [0.05, 0.03]


@given(st.integers(0, 2**32 - 1))
def test_the_kernel_is_its_twin(seed: int) -> None:
    random = np.random.default_rng(seed)
    prior_s = random.uniform(0.01, 0.1, 5)
    period_s = np.where(random.random(5) < 0.5, prior_s, random.uniform(0.01, 0.1, 5))
    least_s, leases = random.uniform(0.01, 0.1, 5), random.integers(0, 3, 5)
    ran_already = period_s != prior_s
    least_then_s = np.where(ran_already, np.minimum(least_s, period_s), least_s)
    share = least_then_s[ran_already].sum() / prior_s[ran_already].sum() if ran_already.any() else 1.0
    empty_s = np.where(ran_already, least_then_s, min(share, 1.0) * prior_s)
    now_s = np.where(leases > 0, period_s, empty_s)
    marginal_s = np.empty(5)
    marginal_pace(period_s, prior_s, leases, least_s, marginal_s)
    np.testing.assert_allclose(marginal_s, now_s + np.maximum(now_s - empty_s, 0.0))
    np.testing.assert_array_equal(least_s, least_then_s)
