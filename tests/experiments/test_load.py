import math

import numpy as np
import pytest

from bidroute.experiments.load import (
    DeviceModel,
    arrivals_per_s,
    estimate_load,
    held_tokens,
    pace,
    speedup_for_load,
)
from bidroute.traces.workload import Workload


class Constant:
    """One second per iteration or per prefill, whatever the load."""

    def seconds(self, *_):
        return 1.0


def workload(output=10, prompt=4, count=11, rate=2.0):
    ones = np.ones(count, dtype=np.int64)
    return Workload("test", np.arange(count) / rate, prompt * ones, output * ones)


def test_a_request_holds_its_prompt_and_half_of_its_output():
    assert held_tokens(workload(output=10, prompt=4)) == pytest.approx(4 + 11 / 2)


def test_long_outputs_weigh_by_the_time_they_hold():
    mixed = Workload("test", np.zeros(2), np.zeros(2, dtype=np.int64), np.array([1, 9]))
    assert held_tokens(mixed) == pytest.approx((1 + 45) / 10)


def test_slots_bind_when_kv_is_plenty():
    full = pace(DeviceModel(5, 10_000, Constant()), workload(output=10))
    assert (full.tokens_per_s, full.requests_per_s, full.kv_binds) == (5.0, 0.5, False)


def test_kv_binds_when_it_is_scarce():
    full = pace(DeviceModel(500, 95, Constant()), workload(output=10, prompt=4))  # 9.5 tokens each
    assert (full.tokens_per_s, full.kv_binds) == (10.0, True)


def test_prefill_in_the_same_engine_costs_its_time():
    alone = pace(DeviceModel(5, 10_000, Constant()), workload(output=10))
    both = pace(DeviceModel(5, 10_000, Constant(), Constant()), workload(output=10))
    assert 1 / both.requests_per_s == pytest.approx(1 / alone.requests_per_s + 1.0)


def test_load_is_arrivals_over_capacity_and_speedup_brings_it_to_target():
    trace = workload(output=10, rate=2.0, count=101)
    fleet = [DeviceModel(5, 10_000, Constant())] * 2  # 1 request per second in all
    load = estimate_load(trace, fleet)
    assert load.load == pytest.approx(arrivals_per_s(trace))
    assert load.binding == "batch slots"
    again = estimate_load(trace.sped_up(speedup_for_load(load, 0.5)), fleet)
    assert again.load == pytest.approx(0.5, rel=0.01)


def test_too_few_prefill_workers_bind():
    load = estimate_load(workload(output=1), [DeviceModel(5, 10_000, Constant())], [Constant()])
    assert (load.binding, load.capacity_per_s) == ("prefill", 1.0)


def test_all_at_once_is_an_infinite_load_and_needs_no_speedup():
    load = estimate_load(workload(rate=math.inf), [DeviceModel(5, 10_000, Constant())])
    assert math.isinf(load.load)
    assert speedup_for_load(load) == 1.0


def test_prefill_workers_that_take_no_time_never_bind():
    class Instant:
        def seconds(self, new_tokens):
            return 0.0

    load = estimate_load(workload(), [DeviceModel(5, 10_000, Constant())], [Instant()])
    assert load.capacity_per_s == pytest.approx(0.5)
    assert load.binding == "batch slots"
