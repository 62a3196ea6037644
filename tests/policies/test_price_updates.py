import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.objective import URGENCY, Objective
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.policies.price_updates import PERIODS_PER_STEP, STEPS_AFTER_PAUSE, PriceUpdates
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.prices import Sample, ShadowPrices
from tests.policies.states import MODEL, state

OBJECTIVE = Objective(throughput=1.0, tail=0.0)
PERIOD_S = 0.5
PERIOD = Device("d", 2, 1000, period_s=PERIOD_S)


class Watched(ShadowPrices):
    """Remembers what it was stepped with."""

    def __init__(self) -> None:
        super().__init__(TimeGrid(np.array([0, 4, 20])))
        self.samples: list[Sample] = []

    def step(self, fleet, lengths, sample, devices, decay_s, price_scale) -> None:  # type: ignore[no-untyped-def]
        self.samples.append(sample)
        super().step(fleet, lengths, sample, devices, decay_s, price_scale)


def updates(arrivals: int = 5, seed: int = 0, *, forecast: bool = True) -> tuple[PriceUpdates, Watched]:
    """With `arrivals` at 1/s, of 7 prompt tokens each."""
    history, prices = ArrivalHistory(), Watched()
    for k in range(arrivals):
        history.add(float(k), 7, 0)
    return PriceUpdates(prices, history, seed, forecast=forecast), prices


def test_at_most_one_step_per_so_many_periods() -> None:
    stepped, prices = updates()
    waiting = state([PERIOD], [(3, 0, 0)])
    stepped.run(4.0, waiting, OBJECTIVE, 10.0)
    first = len(prices.samples)
    stepped.run(4.0 + 0.9 * PERIODS_PER_STEP * PERIOD_S, waiting, OBJECTIVE, 10.0)
    assert len(prices.samples) == first
    stepped.run(4.0 + 1.1 * PERIODS_PER_STEP * PERIOD_S, waiting, OBJECTIVE, 10.0)
    assert len(prices.samples) == first + 1


def test_a_pause_is_made_up_for_within_limits() -> None:
    stepped, prices = updates()
    stepped.run(4.0, state([PERIOD]), OBJECTIVE, 10.0)
    before = len(prices.samples)
    stepped.run(1e6, state([PERIOD]), OBJECTIVE, 10.0)
    assert len(prices.samples) == before + STEPS_AFTER_PAUSE


def test_prices_go_on_when_the_clock_is_set_back() -> None:
    stepped, prices = updates()
    stepped.run(1e6, state([PERIOD]), OBJECTIVE, 10.0)
    before = len(prices.samples)
    waiting = state([PERIOD], [(3, 0, 0)], arrival_s=[1e6])
    stepped.run(5.0, waiting, Objective(latency=1.0), 10.0)
    assert len(prices.samples) == before + 1
    assert np.all(prices.samples[-1].reward > 0.0)


def test_without_arrivals_or_devices_nothing_happens() -> None:
    stepped, prices = updates(arrivals=0)
    stepped.run(1.0, state([PERIOD]), OBJECTIVE, 10.0)
    nobody = state([PERIOD])
    nobody.fleet.drain(0)
    updates()[0].run(1.0, nobody, OBJECTIVE, 10.0)
    assert prices.samples == []


def one_sample(waiting: RoutingState, objective: Objective = OBJECTIVE, now_s: float = 4.0) -> Sample:
    stepped, prices = updates()
    stepped.run(now_s, waiting, objective, 10.0)
    return prices.samples[0]


def test_the_sample_stands_for_the_queue_and_for_the_arrivals_forecast() -> None:
    sample = one_sample(state([PERIOD], [(3, 0, 0)] * 50))
    queued = sample.prompt_tokens == 3
    assert sample.weight[queued].sum() == pytest.approx(50.0)
    assert np.all(sample.earliest[queued] == 0)
    # 1/s over the horizon of 20 periods of 0.5 s, one draw per start: 4 periods, then 16
    assert sample.weight[~queued].tolist() == pytest.approx([2.0, 8.0])
    assert sample.earliest[~queued].tolist() == [0, 4]


def test_without_the_forecast_only_the_queue_competes() -> None:
    stepped, prices = updates(forecast=False)
    stepped.run(4.0, state([PERIOD], [(3, 0, 0)] * 50), OBJECTIVE, 10.0)
    sample = prices.samples[0]
    assert sample.weight[sample.prompt_tokens == 3].sum() == pytest.approx(50.0)
    assert not sample.weight[sample.prompt_tokens != 3].any()


def test_few_in_the_queue_are_drawn_as_often_as_there_are() -> None:
    sample = one_sample(state([PERIOD], [(3, 0, 9)] * 2))
    assert np.count_nonzero(sample.exact_tokens == 9) == 2
    assert np.count_nonzero(one_sample(state([PERIOD])).prompt_tokens == 7) == 2


def test_rewards_count_the_wait_and_the_priority() -> None:
    old = state([PERIOD], [(3, 0, 4)], arrival_s=[1.0])
    objective = Objective(throughput=0.0, tail=0.0, gamma=1.0, horizon_s=60.0)
    sample = one_sample(old, objective)
    assert sample.reward[sample.exact_tokens == 4].tolist() == [57.0]
    assert sample.reward[sample.exact_tokens == 0].tolist() == [60.0, 60.0]


def test_rewards_know_which_slos_are_missed() -> None:
    objective = Objective(throughput=1.0, tail=0.0, goodput=2.0)
    # it has waited for 3 s, and its first token takes one period of 0.5 s more
    urgent = 2.0 * URGENCY * (3.0 / 3.5) ** 4
    for slo_s, reward in ((3.4, 1.0), (4.0, 3.0 + urgent)):
        waiting = state([PERIOD])
        waiting.queue.add(Request(9, 1.0, 3, ttft_slo_s=slo_s), 0, 4)
        sample = one_sample(waiting, objective)
        assert sample.reward[sample.exact_tokens == 4].tolist() == pytest.approx([reward])


def test_the_service_time_is_that_of_recent_arrivals() -> None:
    stepped, _ = updates()
    assert stepped.service_s(state([PERIOD])) == pytest.approx(MODEL.mean_tokens(0) * PERIOD_S)


def test_the_same_seed_gives_the_same_prices() -> None:
    prices = []
    for seed in (1, 1, 2):
        stepped, watched = updates(seed=seed)
        for second in range(4, 40):
            stepped.run(float(second), state([PERIOD], [(k, 0, 0) for k in range(40)]), OBJECTIVE, 10.0)
        prices.append(np.stack([watched.slot_price, watched.kv_price]))
    np.testing.assert_array_equal(prices[0], prices[1])
    assert not np.array_equal(prices[0], prices[2])


def test_requests_worth_nothing_leave_the_price_scale_alone() -> None:
    stepped, _ = updates()
    waiting = state([PERIOD], [(10, 0, 3)])
    stepped.run(10.0, waiting, OBJECTIVE, 60.0)
    scale = stepped.price_scale
    assert scale > 0.0
    # a horizon that everybody is past, and a weight so small that a fresh arrival's reward underflows to 0 too
    stepped.run(1e3, waiting, Objective(throughput=0.0, tail=0.0, gamma=1e-300, horizon_s=1e-300), 60.0)
    assert stepped.price_scale == scale
