from __future__ import annotations

import math

import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.simulator import Outcome, RunResult, Scenario, Slo, affine_decode, request_times, simulate, summary
from tests.simulator.helpers import BlindCycle, Fifo, OneClass, devices, workload

FIELDS = [
    "e2e_s",
    "ttft_s",
    "tpot_s",
    "output_tokens_per_s",
    "requests_per_s",
    "goodput",
    "preemptions",
    "wasted_tokens",
    "refused",
    "unfinished",
    "decision_us",
    "wall_s",
    "cpu_s",
]


def result_of(rows: list[tuple[float, int, int]], kv_tokens: int = 100) -> RunResult:
    return simulate(
        Scenario(workload(rows), devices(1, 1, kv_tokens), affine_decode(1.0, 0.0, 0.0)), Fifo(), OneClass()
    )


def test_summary_of_two_requests_by_hand() -> None:
    """Periods of a second: the first runs from 1 to 4, the second waits from 2 to 4 and has one token."""
    result = summary(result_of([(1.0, 1, 3), (2.0, 1, 1), (2.0, 1, 200)]), Slo(ttft_s=2.0, e2e_s=10.0, tpot_s=1.0))
    assert list(result) == FIELDS
    assert result["e2e_s"] == {"mean": 3.0, "p50": 3.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    assert result["ttft_s"] == pytest.approx({"mean": 2.0, "p50": 2.0, "p90": 2.8, "p95": 2.9, "p99": 2.98})
    assert result["tpot_s"] == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0}
    assert (result["output_tokens_per_s"], result["requests_per_s"], result["goodput"]) == (1.0, 0.5, 0.25)
    assert (result["refused"], result["unfinished"], result["preemptions"], result["wasted_tokens"]) == (1, 0, 0, 0)


def test_a_run_in_which_nothing_finished() -> None:
    result = result_of([(0.0, 200, 3)])
    assert result.status.tolist() == [Outcome.REFUSED]
    figures = summary(result)
    assert figures["goodput"] == figures["requests_per_s"] == 0.0
    assert isinstance(figures["e2e_s"], dict)
    assert math.isnan(figures["e2e_s"]["mean"])


def test_times_are_of_the_finished_only() -> None:
    times = request_times(result_of([(0.0, 1, 2), (0.0, 200, 3)]))
    assert times.e2e_s.tolist() == [2.0]
    assert times.ttft_s.tolist() == [1.0]


def test_blind_policies_report_one_decision_time() -> None:
    scenario = Scenario(workload([(0.0, 1, 2)] * 3), devices(1, 1, 100), affine_decode(1.0, 0.0, 0.0))
    result = simulate(scenario, BlindCycle(), OneClass())
    assert len(result.decision_us) == 1
    assert np.all(result.decision_us > 0)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_slos_must_be_positive(value: float) -> None:
    with pytest.raises(ConfigError, match="SLO ttft_s"):
        Slo(ttft_s=value)
