"""`python -m bidroute.integrations.vidur`, with Vidur's options and ours."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from bidroute.integrations.vidur.__main__ import main
from bidroute.integrations.vidur.policies import vidur_name
from bidroute.integrations.vidur.setup import parse_options, scheduler_config
from bidroute.policies import policy_names
from tests.vidur.helpers import in_vidur, words, workload

pytestmark = pytest.mark.vidur

GENERATOR = {
    "synthetic_request_generator_config_num_requests": 60,
    "length_generator_config_type": "zipf",
    "zipf_request_length_generator_config_min_tokens": 32,
    "zipf_request_length_generator_config_max_tokens": 256,
    "zipf_request_length_generator_config_prefill_to_decode_ratio": 0.25,
    "interval_generator_config_type": "poisson",
    "poisson_request_interval_generator_config_qps": 60,
}


def _printed(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_it_prints_figures_and_vidur_writes_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words("bid_price", tmp_path, **GENERATOR), "--metrics_config_write_metrics"]) == 0
    figures = _printed(capsys)
    assert (figures["refused"], figures["unfinished"]) == (0, 0)
    (written,) = tmp_path.glob("*/request_metrics.csv")
    vidurs = pd.read_csv(written)
    assert len(vidurs) == 60
    assert vidurs["request_e2e_time"].mean() == pytest.approx(figures["e2e_s"]["mean"])
    assert vidurs["prefill_e2e_time"].mean() == pytest.approx(figures["ttft_s"]["mean"])


@pytest.mark.parametrize("policy", ["lor", "round_robin", "random", "bidroute_random", "power_of_d"])
def test_vidurs_own_schedulers_and_ours_run_the_same_way(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**GENERATOR, "bidroute_decode_only": True, "bidroute_batch_caps": [8, 4]}
    assert main(words(policy, tmp_path, **options)) == 0
    figures = _printed(capsys)
    assert figures["unfinished"] == 0
    assert figures["ttft_s"]["mean"] < figures["e2e_s"]["mean"]


def test_every_policy_has_a_name_of_its_own() -> None:
    names = [vidur_name(policy) for policy in policy_names()]
    assert len(set(names)) == len(names)
    assert {"bid_price", "bidroute_round_robin", "power_of_d", "least_footprint+safety+ageing"} <= set(names)
    for name, policy in zip(names, policy_names(), strict=True):
        assert scheduler_config(name).policy == policy


def test_options_reach_the_policy(tmp_path: Path) -> None:
    given = words(
        "bid_price",
        tmp_path,
        bidroute_policy_options="risk_z=3:max_skips=2",
        bidroute_objective="tail",
        replicas=3,
        bidroute_speeds=[1, 0.5, 2],
    )
    config = parse_options(given)
    assert (config.bidroute.policy_options, config.bidroute.objective) == ("risk_z=3:max_skips=2", "tail")
    assert (config.bidroute.speeds, config.bidroute.kv_tokens) == ([1.0, 0.5, 2.0], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_scheduler_config_type": "nobody"}, "global scheduler 'nobody' is unknown; choose from: bid_price"),
        ({"bidroute_policy_options": "d=3"}, "policy bid_price has no option 'd'"),
        ({"bidroute_lengths": "magic"}, "length predictor 'magic' is unknown"),
        ({"bidroute_objective": "joy"}, "joy"),
        ({"bidroute_speeds": [1.0]}, "bidroute_speeds: 1 values for 2 replicas; expected one each"),
        ({"bidroute_batch_caps": [4, 0]}, r"bidroute_batch_caps=\[4, 0\]; expected positive numbers"),
        ({"latency_predictor_config_decode": "affine:1"}, "expected affine:A,B,C"),
        ({"replica_config_num_pipeline_stages": 2}, "expected 1: the latency models"),
        ({"replica_scheduler_config_type": "vllm"}, "policies of bidroute expect sarathi with 1"),
    ],
)
def test_what_is_wrong_is_one_line(
    options: dict[str, object], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words("bid_price", tmp_path, **options)) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("bidroute: ")
    assert re.search(message, last)


def test_what_fits_no_replica_is_refused_and_the_others_run(tmp_path: Path) -> None:
    arrivals = workload(60, 30.0)
    arrivals.prompt_tokens[7] = 30_000
    run = in_vidur("bid_price", tmp_path, arrivals)
    assert run.refused.nonzero()[0].tolist() == [7]
    assert run.finished.sum() == 59
    assert run.summary()["refused"] == 1


def test_a_request_sent_where_it_cannot_end_is_refused(tmp_path: Path) -> None:
    """A dispatcher that does not know the length may choose a replica that is too small; nobody waits behind it."""
    arrivals = workload(60, 30.0)
    arrivals.output_tokens[:] = 900
    run = in_vidur(
        "bidroute_round_robin", tmp_path, arrivals, bidroute_kv_tokens=[20_001, 600], bidroute_lengths="none"
    )
    assert run.refused.any()
    assert (run.finished | run.refused).all()
    assert (run.device[run.finished] == 0).all()


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    first, again = (in_vidur("bid_price", tmp_path, workload(80, 40.0)) for _ in range(2))
    assert first.end_s.tolist() == again.end_s.tolist()
    assert first.assignments.tolist() == again.assignments.tolist()


def test_a_time_limit_leaves_requests_unfinished(tmp_path: Path) -> None:
    run = in_vidur("fifo+safety", tmp_path, workload(200, 60.0), time_limit=1)
    figures = run.summary()
    assert figures["unfinished"] == 200 - int(run.finished.sum()) > 0
