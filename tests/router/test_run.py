import asyncio

from bidroute.router.run import _watch
from tests.router.fleet_fakes import FakeFleet


async def test_a_file_that_lists_no_workers_at_the_start_is_watched_all_the_same(tmp_path, caplog):
    path, fleet = tmp_path / "fleet.yaml", FakeFleet()
    path.write_text("policy: fifo\n")
    watching = asyncio.create_task(_watch(path, fleet))  # type: ignore[arg-type]
    async with asyncio.timeout(10.0):
        while not caplog.records and not watching.done():
            await asyncio.sleep(0.01)
        path.write_text("workers: ['http://a:8000']\n")
        while not fleet.calls and not watching.done():
            await asyncio.sleep(0.05)
    watching.cancel()
    assert fleet.calls == [("add", {"url": "http://a:8000"})]
    assert "expected `workers:`" in caplog.text
