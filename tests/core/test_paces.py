"""What is learned of an affine period, in closed form; and the kernels against their twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.core import pace_kernels as kernels
from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.paces import Paces
from bidroute.core.requests import Request

EMPTY_S, PER_REQUEST_S = 0.006, 0.001


def paces(*prior_s: float) -> Paces:
    made = Paces()
    for period_s in prior_s:
        made.join(Device("d", 64, 100_000, period_s=period_s))
    return made


def ran(of: Paces, device: int, *batches: int, noise: float = 0.0, periods: int = 1, rounds: int = 400) -> None:
    """The device goes through these batches, so many periods each, again and again; its period is affine."""
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for batch in batches:
            period_s = (EMPTY_S + PER_REQUEST_S * batch) * random.lognormal(0.0, noise)
            of.observe(device, batch, periods, periods * period_s)


def marginal_s(of: Paces, *batch: int) -> list[float]:
    seconds: list[float] = of.marginal_s(np.array(batch)).tolist()
    return seconds


@pytest.mark.parametrize("batch", [0, 3, 10, 40])
def test_one_more_costs_its_own_tokens_and_the_delay_of_the_others(batch: int) -> None:
    made = paces(0.05)
    ran(made, 0, 2, 6, 10, 8, 4)
    itself_s, others_s = EMPTY_S + PER_REQUEST_S * (batch + 1), PER_REQUEST_S * batch
    assert marginal_s(made, batch) == pytest.approx([itself_s + others_s], rel=0.01)


def test_noise_in_what_is_seen_hardly_moves_the_slope() -> None:
    made = paces(0.05)
    ran(made, 0, 2, 6, 10, 8, 4, noise=0.3, rounds=1000)
    assert made.moments[kernels.SLOPE_S, 0] == pytest.approx(PER_REQUEST_S, rel=0.35)
    assert made.period_s[0] == pytest.approx(EMPTY_S + PER_REQUEST_S * 6, rel=0.3)


def test_a_slope_once_learned_stays_while_the_batch_does_not_vary() -> None:
    made = paces(0.05)
    ran(made, 0, 2, 6, 10, 8, 4)
    ran(made, 0, 10, rounds=5000)
    assert made.moments[kernels.SLOPE_S, 0] == pytest.approx(PER_REQUEST_S, rel=0.05)
    assert marginal_s(made, 0) == pytest.approx([EMPTY_S + PER_REQUEST_S], rel=0.05)


def test_another_clock_rate_shows_at_once() -> None:
    made = paces(0.05)
    ran(made, 0, 2, 6, 10, 8, 4)
    for _ in range(60):
        made.observe(0, 6, 1, 2 * (EMPTY_S + 6 * PER_REQUEST_S))
    delay_s = 5 * made.moments[kernels.SLOPE_S, 0]  # of the others
    assert marginal_s(made, 5)[0] - delay_s == pytest.approx(2 * (EMPTY_S + 6 * PER_REQUEST_S), rel=0.1)


def test_long_iterations_count_by_their_mean_and_not_by_which_device_had_one_just_now() -> None:
    """Every sixth iteration processes a prompt for 40 ms; one of the devices has just done so."""
    made, period_s, prompt_s = paces(0.05, 0.05), EMPTY_S + 6 * PER_REQUEST_S, 0.04
    for iteration in range(6000):
        for device in range(2):
            made.observe(device, 6, 1, period_s + prompt_s * (iteration % 6 == device))
    made.observe(0, 6, 1, period_s + prompt_s)
    np.testing.assert_allclose(made.period_s, period_s + prompt_s / 6, rtol=0.1)
    just_now_s, before_s = marginal_s(made, 5, 5)
    assert just_now_s == pytest.approx(before_s, rel=0.03)
    others_s = 5 * made.moments[kernels.SLOPE_S, 1]
    assert before_s - others_s == pytest.approx(period_s + prompt_s / 6, rel=0.1)


def test_what_took_long_in_many_iterations_at_once_is_no_exception() -> None:
    made = paces(0.05)
    ran(made, 0, 6)
    made.observe(0, 6, 100, 100 * 3 * EMPTY_S * 2)
    assert made.period_s[0] == pytest.approx(6 * EMPTY_S, rel=0.01)


def test_a_host_that_sees_only_means_has_no_long_iterations() -> None:
    fleet = Fleet([Device("d", 64, 100_000)])
    for _ in range(50):
        fleet.observe_pace(0, 1, 0.01)
    fleet.observe_pace(0, 1, 0.03)
    assert fleet.period_s[0] == pytest.approx(0.01 + kernels.SMOOTHING * 0.02, rel=0.01)
    assert fleet.paces.moments[kernels.EXCESS_S, 0] == 0.0


def test_before_anything_ran_the_priors_count_and_the_busier_of_equals_costs_more() -> None:
    assert marginal_s(paces(0.05, 0.02), 0, 0) == pytest.approx([0.05 * 1.01, 0.02 * 1.01])
    busy_s, idle_s = marginal_s(paces(0.05, 0.05), 1, 0)
    assert busy_s > idle_s


def test_one_that_never_ran_falls_short_of_its_prior_as_the_others_did() -> None:
    made = paces(0.02, 0.05)
    ran(made, 0, 2, 6, 10, 8, 4)
    assert marginal_s(made, 0, 0)[1] == pytest.approx(0.05 * EMPTY_S / 0.02 * 1.01, rel=0.02)


def test_priors_soon_give_way() -> None:
    made = paces(0.02)
    made.observe(0, 1, 3, 3 * 0.08)
    assert made.period_s[0] == pytest.approx(0.08, rel=0.2)


def test_several_periods_at_once_are_nearly_as_one_by_one() -> None:
    one, many = paces(0.05), paces(0.05)
    ran(one, 0, *([2] * 5 + [10] * 5))
    ran(many, 0, 2, 10, periods=5)
    np.testing.assert_allclose(one.moments[:5], many.moments[:5], rtol=1e-9)
    assert one.moments[kernels.SLOPE_S, 0] == pytest.approx(many.moments[kernels.SLOPE_S, 0], rel=0.02)


def test_a_fleet_observes_its_leases_and_a_frozen_one_no_longer() -> None:
    fleet = Fleet([Device("d", 64, 100_000)])
    for lease in range(3):
        fleet.open(Request(lease, 0.0, 1), 0, 0)
    fleet.advance(0, 100, 100 * 0.03)
    frozen = fleet.frozen()
    assert (fleet.paces.moments[kernels.BATCH, 0], fleet.period_s[0]) == pytest.approx((3.0, 0.03), rel=0.01)
    fleet.advance(0, 100, 100 * 0.06)
    assert frozen.period_s[0] == pytest.approx(0.03, rel=0.01)
    assert fleet.period_s[0] == pytest.approx(0.06, rel=0.01)
    fleet.join(Device("e", 64, 100_000, period_s=0.04))
    fleet.advance(0, 100, 100 * 0.09)
    assert fleet.period_s.tolist() == pytest.approx([0.09, 0.04], rel=0.01)


@given(st.integers(0, 2**32 - 1))
def test_what_is_expected_is_as_its_twin_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    made = paces(*random.uniform(0.01, 0.1, 4))
    for _ in range(int(random.integers(0, 12))):
        periods = int(random.integers(1, 20))
        made.observe(
            int(random.integers(0, 3)), int(random.integers(0, 30)), periods, periods * random.uniform(0.01, 0.1)
        )
    period_s, plain_s, batch, slope_s = made.moments[
        [kernels.PERIOD_S, kernels.PLAIN_S, kernels.BATCH, kernels.SLOPE_S]
    ]
    prior_s, ran_already = made.prior_s, made.moments[kernels.LONG_WEIGHT] > 0.0
    slope_s = np.minimum(slope_s, kernels.MOST_OF_PERIOD * plain_s / np.maximum(batch, 1.0))
    empty_s = period_s - slope_s * batch
    share = min(empty_s[ran_already].sum() / prior_s[ran_already].sum(), 1.0) if ran_already.any() else 1.0
    empty_s = np.where(ran_already, empty_s, share * prior_s)
    slope_s = np.where(ran_already, slope_s, kernels.PRIOR_SLOPE * empty_s)
    now = random.integers(0, 30, 4)
    np.testing.assert_allclose(made.marginal_s(now), empty_s + slope_s * (now + 1) + slope_s * now)
    assert np.all(empty_s > 0.0)


class PlainPace:
    """The twin of `observe_pace`, for one device."""

    def __init__(self, prior_s: float) -> None:
        self.recent = {"weight": kernels.SMOOTHING, "period_s": prior_s, "batch": 0.0}
        self.excess_s = 0.0
        self.long = {"weight": 0.0, "period_s": 0.0, "batch": 0.0, "square": 0.0, "product": 0.0}
        self.slope_s = kernels.PRIOR_SLOPE * prior_s

    def observe(self, batch: int, periods: int, period_s: float) -> None:
        plain_s = period_s
        if self.recent["weight"] > kernels.KNOWN_WEIGHT:
            expected_s = self.recent["period_s"] + self.slope_s * max(batch - self.recent["batch"], 0.0)
            plain_s = min(period_s, kernels.LONG_ITERATION**periods * expected_s)
        for _ in range(periods):
            self.excess_s += kernels.EXCESS_SMOOTHING * (period_s - plain_s - self.excess_s)
        seen = {"period_s": plain_s, "batch": batch, "square": batch**2, "product": batch * plain_s}
        for means, smoothing in ((self.recent, kernels.SMOOTHING), (self.long, kernels.LONG_SMOOTHING)):
            for _ in range(periods):
                weight = (1.0 - smoothing) * means["weight"] + smoothing
                for name in means.keys() - {"weight"}:
                    means[name] += smoothing / weight * (seen[name] - means[name])
                means["weight"] = weight
        variance = max(self.long["square"] - self.long["batch"] ** 2, 0.0)
        covariance = self.long["product"] - self.long["batch"] * self.long["period_s"]
        step = (covariance - self.slope_s * variance) / (variance + kernels.RIDGE)
        self.slope_s = max(self.slope_s + (1.0 - (1.0 - kernels.SLOPE_SMOOTHING) ** periods) * step, 0.0)


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 9), st.floats(1e-3, 0.5)), min_size=1, max_size=20))
def test_what_is_learned_is_as_its_twin_says(seen: list[tuple[int, int, float]]) -> None:
    made, plain = paces(0.02, 0.03), PlainPace(0.03)
    for batch, periods, period_s in seen:
        made.observe(1, batch, periods, periods * period_s)
        plain.observe(batch, periods, period_s)
    recent, long = plain.recent, plain.long
    twin = [recent["period_s"] + plain.excess_s, recent["period_s"], recent["batch"], recent["weight"], plain.excess_s]
    twin += [long["period_s"], long["batch"], long["square"], long["product"], long["weight"], plain.slope_s]
    np.testing.assert_allclose(made.moments[:, 1], twin, rtol=1e-7, atol=1e-9)
    assert made.period_s[0] == 0.02
