"""The same trace, latency model and policy, in Vidur and in our simulator: the same decisions, the same times."""

from pathlib import Path

import numpy as np
import pytest

from bidroute.integrations.vidur.policies import vidur_name
from bidroute.integrations.vidur.results import VidurRun
from bidroute.policies import policy_names
from bidroute.simulator import RunResult
from bidroute.simulator import summary as simulator_summary
from tests.vidur.helpers import in_simulator, in_vidur, workload

pytestmark = pytest.mark.vidur

NS = 1e-9
UNLIKE = {"bidroute_batch_caps": [16, 8, 8], "bidroute_speeds": [1.0, 0.5, 0.5], "replicas": 3}
TIGHT = {"bidroute_kv_tokens": [4001, 4001]}


def _both(
    policy: str, folder: Path, *, decode_only: bool, lengths: str, rate_per_s: float = 35.0, **options: object
) -> tuple[VidurRun, RunResult]:
    arrivals = workload(150, rate_per_s)
    chosen = {"bidroute_decode_only": decode_only, "bidroute_lengths": lengths, **options}
    vidur = in_vidur(vidur_name(policy), folder, arrivals, **chosen)
    speeds = options.get("bidroute_speeds", [1.0] * len(vidur.devices))
    return vidur, in_simulator(policy, vidur, arrivals, speeds, decode_only=decode_only, lengths=lengths)


def _require_the_same(vidur: VidurRun, ours: RunResult) -> None:
    assert vidur.finished.all()
    assert np.array_equal(vidur.device, ours.device)
    assert np.allclose(vidur.first_token_s, ours.first_token_s, rtol=0.0, atol=NS)
    assert np.allclose(vidur.end_s, ours.end_s, rtol=0.0, atol=NS)
    theirs = simulator_summary(ours)
    for name, value in vidur.summary().items():
        assert value == pytest.approx(theirs[name], rel=1e-9, nan_ok=True), name


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_decides_the_same_in_both(policy: str, tmp_path: Path) -> None:
    """Decode-only replicas that are unlike, whose slots bind; lengths are known give or take 20 %."""
    vidur, ours = _both(policy, tmp_path, decode_only=True, lengths="uniform:0.2", **UNLIKE)
    _require_the_same(vidur, ours)
    assert vidur.summary()["preemptions"] == 0


@pytest.mark.parametrize("policy", ["bid_price", "fifo+safety", "least_footprint+safety", "join_shortest_queue"])
@pytest.mark.parametrize("lengths", ["none", "oracle"])
def test_aggregated_replicas_too(policy: str, lengths: str, tmp_path: Path) -> None:
    vidur, ours = _both(policy, tmp_path, decode_only=False, lengths=lengths, rate_per_s=25.0)
    _require_the_same(vidur, ours)
    assert (np.asarray(ours.held_s) > 0).any()


@pytest.mark.parametrize("policy", ["bid_price", "fifo+safety", "least_footprint+safety"])
def test_where_kv_binds_and_lengths_are_known(policy: str, tmp_path: Path) -> None:
    """Nobody is preempted, so that it does not matter that the two preempt differently."""
    vidur, ours = _both(policy, tmp_path, decode_only=True, lengths="oracle", **TIGHT)
    _require_the_same(vidur, ours)
    assert vidur.summary()["preemptions"] == 0


def test_where_requests_are_preempted_figures_are_near(tmp_path: Path) -> None:
    """Vidur computes a preempted request again in its engine, and chooses by arrival whom to throw out."""
    vidur, ours = _both("join_shortest_queue", tmp_path, decode_only=True, lengths="none", rate_per_s=35.0, **TIGHT)
    theirs, here = simulator_summary(ours), vidur.summary()
    assert here["preemptions"] > 10
    assert theirs["preemptions"] > 10
    assert here["e2e_s"]["mean"] == pytest.approx(theirs["e2e_s"]["mean"], rel=0.15)
    assert here["output_tokens_per_s"] == pytest.approx(theirs["output_tokens_per_s"], rel=0.1)
