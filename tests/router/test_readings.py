from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.router.readings import Reading, parse_reading, progress_between

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2].parent / "shared" / "vllm"


def test_vllm_under_pressure():
    reading = parse_reading((DATA / "vllm_metrics.txt").read_text())
    assert reading == Reading(
        kind="vllm",
        engines=1,
        running=4,
        waiting=1,
        waiting_for_capacity=1,
        kv_usage=1.0,
        preemptions_total=6,
        generation_tokens_total=4823,
        prompt_tokens_total=834,
        steps_total=1802,
        token_gaps_s=pytest.approx(23.4976409),
        token_gaps_count=4793,
        num_gpu_blocks=33,
        block_size=32,
        kv_tokens=32 * 32,
        sleeping=False,
    )


def test_sglang_ranks_of_one_engine_count_once_and_engines_add_up():
    reading = parse_reading((DATA / "sglang_metrics.txt").read_text())
    assert reading == Reading(
        kind="sglang",
        engines=2,
        running=21,
        waiting=3,
        kv_usage=0.375,
        preemptions_total=50,
        generation_tokens_total=7_557_572,
        prompt_tokens_total=8_128_902,
        token_gaps_s=51.5,
        token_gaps_count=1030,
        kv_tokens=80_000,
    )


def test_sglang_names_with_an_underscore():
    assert parse_reading("sglang_num_running_reqs 5\nsglang_token_usage 0.5\n") == Reading(
        kind="sglang", running=5, kv_usage=0.5
    )


def test_data_parallel_vllm_sums_over_the_engine_label():
    page = "".join(
        f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {3 + i}\n'
        f'vllm:kv_cache_usage_perc{{engine="{i}",model_name="m"}} 0.{2 + 2 * i}\n'
        f'vllm:cache_config_info{{block_size="16",engine="{i}",num_gpu_blocks="101"}} 1.0\n'
        for i in range(2)
    )
    reading = parse_reading(page)
    assert (reading.engines, reading.running, reading.kv_usage) == (2, 7, pytest.approx(0.3))
    assert (reading.num_gpu_blocks, reading.block_size, reading.kv_tokens) == (202, 16, 3200)


def test_the_name_that_vllm_used_before():
    assert parse_reading('vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n').kv_usage == 0.25


def test_sleep():
    page = 'vllm:engine_sleep_state{engine="0",sleep_state="awake"} %d\n'
    assert parse_reading(page % 0).sleeping
    assert not parse_reading(page % 1).sleeping


@pytest.mark.parametrize(
    "page",
    ["", "\n\n", "<html>not found</html>", "process_open_fds 42.0\n", "vllm:num_requests_running_other 3\n", "vllm:"],
)
def test_a_page_of_something_else_is_an_empty_reading(page):
    assert parse_reading(page) == Reading()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "", "many", "1.0.0"])
def test_what_is_no_number_is_left_out(value):
    page = f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:num_requests_waiting{{engine="0"}} 2\n'
    assert parse_reading(page) == Reading(kind="vllm", waiting=2)


def test_labels_with_braces_and_timestamps():
    page = 'vllm:num_requests_running{engine="0",model_name="a} 9 \\"b\\" {"} 3.0 1700000000000\r\n'
    assert parse_reading(page).running == 3


def test_cache_config_without_numbers_says_nothing():
    page = 'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1.0\n'
    assert parse_reading(page).kv_tokens is None


@given(st.text(alphabet=st.sampled_from('vllm:sgang_num_requests_running{}=",.0 1\n\r\t#é'), max_size=300))
def test_no_text_breaks_it(page):
    assert isinstance(parse_reading(page), Reading)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_sums_over_engines(counts):
    page = "".join(f'vllm:num_requests_waiting{{engine="{i}"}} {count}.0\n' for i, count in enumerate(counts))
    assert parse_reading(page).waiting == sum(counts)


def test_progress_between_readings():
    before = Reading(steps_total=100, token_gaps_s=2.0, token_gaps_count=50, generation_tokens_total=10)
    after = Reading(
        steps_total=150, token_gaps_s=3.0, token_gaps_count=100, generation_tokens_total=70, preemptions_total=9
    )
    progress = progress_between(before, after, 2.0)
    assert progress is not None
    assert (progress.step_s, progress.token_gap_s, progress.output_tokens_per_s) == (0.04, 0.02, 30.0)
    assert progress.preemptions == 0  # not known before, so no growth is known


def test_progress_of_an_idle_engine_tells_no_period():
    reading = Reading(steps_total=5, token_gaps_s=1.0, token_gaps_count=5, generation_tokens_total=5)
    progress = progress_between(reading, reading, 0.5)
    assert progress is not None
    assert (progress.step_s, progress.token_gap_s, progress.output_tokens_per_s) == (None, None, 0.0)


def test_a_restart_is_no_progress():
    assert progress_between(Reading(steps_total=100), Reading(steps_total=3), 1.0) is None
    assert progress_between(Reading(), Reading(), 0.0) is None


@pytest.mark.skipif(not SHARED.exists(), reason="the folder of real pages is not beside this checkout")
@pytest.mark.parametrize(
    ("file", "blocks", "running"), [("vllm_metrics.txt", 33, 4), ("vllm_metrics_nixl_decode.txt", 65, 0)]
)
def test_whole_pages_of_real_engines(file, blocks, running):
    reading = parse_reading((SHARED / file).read_text())
    assert (reading.num_gpu_blocks, reading.running) == (blocks, running)
    assert [f.name for f in fields(reading) if getattr(reading, f.name) is None] == ["batch_slots"]
