import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from bidroute.router.discovery import Capacity, DiscoverySettings, SlotEstimate, UnreachableError, discover
from bidroute.router.readings import Reading
from bidroute.router.workers import Worker

DATA = Path(__file__).parent / "data"


class FakeWorker:
    """Serves fixed answers by path, and remembers who asked for what."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        self.server = TestServer(app)

    async def answer(self, request):
        self.asked.append((request.path, request.headers.get("Authorization")))
        found = self.answers.get(request.path)
        if found is None:
            raise web.HTTPNotFound
        return web.Response(text=found) if isinstance(found, str) else web.json_response(found)

    async def __aenter__(self):
        await self.server.start_server()
        return self

    async def __aexit__(self, *_):
        await self.server.close()

    @property
    def worker(self):
        return Worker("w", str(self.server.make_url("")).rstrip("/"), headers={"Authorization": "Bearer up"})


async def discovered(answers, settings=None):
    async with FakeWorker(answers) as fake, aiohttp.ClientSession() as session:
        return await discover(session, fake.worker, settings), fake.asked


def models(owner, **more):
    return {"data": [{"id": "tiny", "owned_by": owner, "max_model_len": 1024, **more}, {"id": "lora"}]}


VLLM_INFO = {"vllm_config": {"scheduler_config": {"max_num_seqs": 16}}}


async def test_vllm_in_developer_mode_tells_all():
    answers = {
        "/metrics": (DATA / "vllm_metrics.txt").read_text(),
        "/v1/models": models("vllm"),
        "/server_info": VLLM_INFO,
    }
    capacity, asked = await discovered(answers)
    assert capacity == Capacity("vllm", 16, 1024, 32, 1024, frozenset({"tiny", "lora"}))
    assert {auth for _, auth in asked} == {"Bearer up"}
    assert {path for path, _ in asked} == {"/metrics", "/v1/models", "/server_info"}


async def test_vllm_otherwise_keeps_its_slots_to_itself():
    answers = {"/metrics": (DATA / "vllm_metrics.txt").read_text(), "/v1/models": models("vllm")}
    capacity, _ = await discovered(answers)
    assert (capacity.batch_slots, capacity.kv_tokens) == (None, 1024)


async def test_slots_of_data_parallel_engines_add_up():
    page = 'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_running{engine="1"} 0\n'
    capacity, _ = await discovered({"/metrics": page, "/server_info": VLLM_INFO})
    assert (capacity.batch_slots, capacity.models, capacity.max_model_len) == (32, None, None)


async def test_sglang_with_loads():
    loads = {"loads": [{"max_running_requests": 64, "max_total_num_tokens": 40_000}] * 2}
    answers = {"/metrics": (DATA / "sglang_metrics.txt").read_text(), "/v1/loads": loads}
    capacity, asked = await discovered(answers)
    assert (capacity.kind, capacity.batch_slots, capacity.kv_tokens) == ("sglang", 128, 80_000)
    assert "/get_server_info" not in {path for path, _ in asked}


async def test_sglang_without_metrics_or_loads():
    info = {
        "max_total_num_tokens": 20_480,
        "max_running_requests": None,
        "internal_states": [{"effective_max_running_requests_per_dp": 128}],
    }
    capacity, _ = await discovered({"/v1/models": models("sglang"), "/get_server_info": info})
    assert capacity == Capacity("sglang", 128, 20_480, None, 1024, frozenset({"tiny", "lora"}))


@pytest.mark.parametrize("nonsense", ["not json", [], {"data": [3, None]}, {"data": "x"}, 7])
async def test_nonsense_is_unknown(nonsense):
    answers = {"/metrics": "hello", "/v1/models": nonsense, "/server_info": nonsense}
    capacity, _ = await discovered(answers)
    assert capacity == Capacity("", None, None, None, None, None)


@pytest.mark.parametrize("value", [True, -1, 0, "16", 1.5, None, {}])
async def test_slots_that_are_no_count_are_unknown(value):
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": value}}}
    capacity, _ = await discovered({"/v1/models": models("vllm"), "/server_info": info})
    assert capacity.batch_slots is None


async def test_server_info_may_take_its_time():
    """vLLM's looks over its whole machine before it answers."""

    class SlowInfo(FakeWorker):
        async def answer(self, request):
            await asyncio.sleep(0.4 if request.path == "/server_info" else 0.0)
            return await super().answer(request)

    answers = {"/v1/models": models("vllm"), "/server_info": VLLM_INFO}
    async with SlowInfo(answers) as fake, aiohttp.ClientSession() as session:
        assert (await discover(session, fake.worker, DiscoverySettings(timeout_s=0.2))).batch_slots == 16
        hurried = DiscoverySettings(timeout_s=0.2, server_info_timeout_s=0.2)
        assert (await discover(session, fake.worker, hurried)).batch_slots is None


async def test_an_endless_answer_is_cut():
    settings = DiscoverySettings(largest_bytes=100)
    with pytest.raises(UnreachableError, match="more than 100 bytes"):
        await discovered({"/metrics": "x" * 1000}, settings)


async def test_nobody_there():
    async with aiohttp.ClientSession() as session:
        with pytest.raises(UnreachableError, match=r"worker w: no answer from http://127.0.0.1:9 .*is it up\?"):
            await discover(session, Worker("w", "http://127.0.0.1:9"))


# --- SlotEstimate -----------------------------------------------------------------------------------------------


def full(running, *, usage=0.5, waiting=2):
    return Reading(running=running, waiting=waiting, waiting_for_capacity=waiting, kv_usage=usage)


def test_the_default_holds_until_an_engine_ran_out_of_slots_twice():
    estimate = SlotEstimate(64)
    assert estimate.observe(Reading(running=10, waiting=0, kv_usage=0.2)) == 64
    assert estimate.observe(full(16)) == 64
    assert estimate.observe(full(16)) == 16
    assert estimate.learned


def test_full_kv_says_nothing_about_slots():
    estimate = SlotEstimate(64)
    for _ in range(5):
        assert estimate.observe(full(9, usage=0.95)) == 64


def test_waiting_that_is_not_for_capacity_says_nothing():
    estimate = SlotEstimate(64)
    reading = Reading(running=9, waiting=3, waiting_for_capacity=0, kv_usage=0.1)
    assert [estimate.observe(reading) for _ in range(3)] == [64, 64, 64]


def test_sglang_has_no_reasons_and_waiting_counts():
    estimate = SlotEstimate(64)
    reading = Reading(running=9, waiting=3, kv_usage=0.1)
    assert [estimate.observe(reading) for _ in range(2)] == [64, 9]


def test_the_largest_number_seen_twice_is_believed():
    estimate = SlotEstimate(64)
    for running in (5, 7, 16, 9, 7, 16, 5):
        estimate.observe(full(running))
    assert estimate.slots == 16


def test_more_running_than_believed_raises_the_belief():
    estimate = SlotEstimate(8)
    assert estimate.observe(Reading(running=12, waiting=0, kv_usage=0.1)) == 12


def test_an_estimate_that_is_too_low_creeps_up_and_falls_back_when_wrong():
    estimate = SlotEstimate(64)
    for _ in range(2):
        estimate.observe(full(10))
    for _ in range(20):
        estimate.observe(Reading(running=10, waiting=0, waiting_for_capacity=0, kv_usage=0.3))
    assert estimate.slots == 11
    assert estimate.observe(full(10, waiting=1)) == 10


def test_sleeping_and_silent_engines_teach_nothing():
    estimate = SlotEstimate(64)
    asleep = Reading(running=3, waiting=5, waiting_for_capacity=5, kv_usage=0.0, sleeping=True)
    assert [estimate.observe(reading) for reading in (asleep, asleep, Reading(), Reading())] == [64] * 4


@given(st.integers(1, 300), st.lists(st.integers(0, 400), max_size=60))
def test_learns_any_number_of_slots_from_demand(true_slots, demands):
    estimate = SlotEstimate(300)
    for demand in [*demands, 400, 400]:
        sent = min(demand, 10**6)
        estimate.observe(full(min(sent, true_slots), waiting=max(0, sent - true_slots)))
    assert estimate.slots == true_slots
