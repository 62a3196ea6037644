import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bidroute.errors import ConfigError
from bidroute.router.scraper import Scraper, ScraperSettings, open_session
from bidroute.router.workers import Worker

PAGE = 'vllm:num_requests_running{engine="0"} 4\n'


class Fleet:
    """A server whose workers behave as `behaviour` says, and all that a scraper reported of them."""

    def __init__(self):
        self.asked = {}
        self.behaviour = {}
        self.readings = []
        self.failures = []
        self.news = asyncio.Event()
        app = web.Application()
        app.router.add_get("/{name}/metrics", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request):
        name = request.match_info["name"]
        self.asked[name] = self.asked.get(name, 0) + 1
        behaviour = self.behaviour.get(name)
        if behaviour == "hang":
            await asyncio.sleep(60)
        if behaviour == "fail":
            return web.Response(status=500)
        return web.Response(text=PAGE if behaviour is None else behaviour)

    def worker(self, name):
        return Worker(name, str(self.server.make_url(f"/{name}")))

    def on_reading(self, worker, reading, now_s):
        self.readings.append((worker.name, reading.running, now_s))
        self.news.set()

    def on_failure(self, worker, reason):
        self.failures.append((worker.name, reason))
        self.news.set()

    async def until(self, condition):
        async with asyncio.timeout(5):
            while not condition():
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def fleet():
    fleet = Fleet()
    await fleet.server.start_server()
    yield fleet
    await fleet.server.close()


@pytest.fixture
async def session():
    async with open_session() as session:
        yield session


@pytest.fixture
async def scraper(fleet, session):
    settings = ScraperSettings(rate_hz=5.0, timeout_s=0.3, largest_bytes=1000)
    scraper = Scraper(session, fleet.on_reading, fleet.on_failure, settings, seed=1)
    yield scraper
    await scraper.close()


async def test_reads_each_worker_again_and_again(fleet, scraper):
    for name in ("a", "b"):
        scraper.watch(fleet.worker(name))
    await fleet.until(lambda: all(sum(row[0] == name for row in fleet.readings) >= 3 for name in "ab"))
    assert {running for _, running, _ in fleet.readings} == {4}
    times = [now_s for name, _, now_s in fleet.readings if name == "a"]
    assert 0.15 < times[1] - times[0] < 0.6


async def test_a_worker_that_hangs_delays_nobody(fleet, scraper):
    fleet.behaviour["slow"] = "hang"
    scraper.watch(fleet.worker("slow"))
    scraper.watch(fleet.worker("quick"))
    await fleet.until(lambda: fleet.failures and len(fleet.readings) >= 2)
    assert {row[0] for row in fleet.readings} == {"quick"}
    assert {row[0] for row in fleet.failures} == {"slow"}
    assert fleet.asked["slow"] <= 2  # one request at a time


@pytest.mark.parametrize(("behaviour", "reason"), [("fail", "status 500"), ("x" * 2000, "more than 1000 bytes")])
async def test_bad_answers_are_failures_with_a_reason(fleet, scraper, behaviour, reason):
    fleet.behaviour["w"] = behaviour
    scraper.watch(fleet.worker("w"))
    await fleet.until(lambda: fleet.failures)
    assert reason in fleet.failures[0][1]


async def test_nobody_there_is_a_failure(fleet, scraper):
    scraper.watch(Worker("gone", "http://127.0.0.1:9"))
    await fleet.until(lambda: fleet.failures)
    assert fleet.failures[0][0] == "gone"


async def test_forgotten_workers_are_read_no_more(fleet, scraper):
    worker = fleet.worker("w")
    scraper.watch(worker)
    await fleet.until(lambda: fleet.readings)
    scraper.forget(worker)
    scraper.forget(worker)
    asked = fleet.asked["w"]
    await asyncio.sleep(0.5)
    assert fleet.asked["w"] == asked


async def test_a_listener_that_fails_does_not_end_the_readings(fleet, session, caplog):
    def broken(worker, reading, now_s):
        fleet.on_reading(worker, reading, now_s)
        raise RuntimeError("a bug")

    scraper = Scraper(session, broken, fleet.on_failure, ScraperSettings(rate_hz=5.0))
    scraper.watch(fleet.worker("w"))
    await fleet.until(lambda: len(fleet.readings) >= 2)
    await scraper.close()
    assert "a listener to its readings failed" in caplog.text


async def test_close_leaves_no_task(fleet, scraper):
    scraper.watch(fleet.worker("w"))
    await scraper.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scrape ")]


async def test_reads_once_on_request(fleet, scraper):
    assert (await scraper.read(fleet.worker("w"))).running == 4
    fleet.behaviour["w"] = "fail"
    with pytest.raises(ValueError, match="status 500"):
        await scraper.read(fleet.worker("w"))


@pytest.mark.parametrize("rate_hz", [0.0, 0.9, 5.1, float("nan")])
def test_rates_out_of_range_are_refused(rate_hz):
    with pytest.raises(ConfigError, match="expected 1 to 5"):
        ScraperSettings(rate_hz=rate_hz)


def test_timeouts_must_be_positive():
    with pytest.raises(ConfigError, match="timeout_s=0"):
        ScraperSettings(timeout_s=0)


async def test_dns_answers_are_kept_for_the_time_given():
    async with open_session(dns_ttl_s=3.0) as session:
        connector = session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        assert connector.use_dns_cache
        assert connector._cached_hosts._ttl == 3
