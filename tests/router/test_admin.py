import pytest
from aiohttp.test_utils import TestClient, TestServer

from bidroute.errors import ConfigError
from bidroute.router.admin import build_admin_app
from bidroute.router.metrics import RouterMetrics
from tests.router.fleet_fakes import FakeFleet

TOKEN = "a-long-admin-token"
AUTH = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def fleet():
    return FakeFleet(("a", "b"))


@pytest.fixture
async def client(fleet):
    async with TestClient(TestServer(build_admin_app(fleet, RouterMetrics()))) as client:
        yield client


@pytest.fixture
async def guarded(fleet):
    async with TestClient(TestServer(build_admin_app(fleet, RouterMetrics(), TOKEN))) as client:
        yield client


async def problem(answer):
    body = await answer.json()
    message = body["error"]["message"]
    assert "\n" not in message
    assert body["error"]["code"] == answer.status
    return message


async def test_state_metrics_and_page(client):
    state = await (await client.get("/admin/state")).json()
    assert [worker["name"] for worker in state["workers"]][:2] == ["h100-a", "h100-b"]
    metrics = await client.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain")
    assert "bidroute_queue_length 87.0" in await metrics.text()
    page = await client.get("/")
    assert page.content_type == "text/html"
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


async def test_changes_reach_the_fleet(client, fleet):
    settings = {"url": "http://c:8000", "name": "c", "batch_slots": 4}
    answer = await client.post("/admin/workers", json=settings)
    assert (answer.status, await answer.json()) == (201, {"name": "c"})
    assert (await client.post("/admin/workers/a/drain", json={})).status == 200
    assert (await client.post("/admin/workers/a/resize", json={"kv_tokens": 5000})).status == 200
    assert (await client.delete("/admin/workers/a")).status == 200
    assert (await client.delete("/admin/workers/b?now=true")).status == 200
    answer = await client.patch("/admin/objective", json={"objective": "balanced,tail=40"})
    assert (await answer.json())["objective"]["tail"] == 40
    assert await (await client.patch("/admin/policy", json={"policy": "fifo"})).json() == {"policy": "fifo"}
    assert fleet.calls == [
        ("add", settings),
        ("drain", "a"),
        ("resize", "a", None, 5000),
        ("remove", "a", False),
        ("remove", "b", True),
        ("objective", "balanced,tail=40"),
        ("policy", "fifo"),
    ]


async def test_explain(client):
    found = await (await client.get("/admin/explain/48209")).json()
    assert found["decisions"][0]["held_by"] == "price"
    answer = await client.get("/admin/explain/nobody")
    assert answer.status == 404
    assert await problem(answer) == "request 'nobody' is unknown"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/admin/workers", {}, 400, "worker url None"),
        ("POST", "/admin/workers", [], 400, "Expected object, got array"),
        ("POST", "/admin/workers", {"url": "http://a:1", "name": "a"}, 400, "there already"),
        ("POST", "/admin/workers/zzz/drain", {}, 404, "'zzz' is unknown; there are: a, b"),
        ("POST", "/admin/workers/a/resize", {}, 400, "nothing to change"),
        ("POST", "/admin/workers/a/resize", {"batch_slots": 0}, 400, ">= 1"),
        ("POST", "/admin/workers/a/resize", {"batch_slots": "4"}, 400, "Expected int | null, got str"),
        ("POST", "/admin/workers/a/resize", {"slots": 4}, 400, "unknown field slots"),
        ("DELETE", "/admin/workers/a?now=maybe", None, 400, "expected true or false"),
        ("DELETE", "/admin/workers/zzz", None, 404, "unknown"),
        ("PATCH", "/admin/objective", {"objective": "tail=nan"}, 400, "tail=nan"),
        ("PATCH", "/admin/objective", {"objective": "speed=1"}, 400, "'speed' is unknown"),
        ("PATCH", "/admin/objective", {}, 400, "missing required field objective"),
        ("PATCH", "/admin/policy", {"policy": "magic"}, 400, "choose from"),
        ("PUT", "/admin/policy", {}, 405, "Method Not Allowed"),
        ("GET", "/admin/nothing", None, 404, "Not Found"),
    ],
)
async def test_bad_requests_get_one_line_and_change_nothing(client, fleet, method, path, body, status, message):
    answer = await client.request(method, path, json=body)
    assert answer.status == status
    assert message in await problem(answer)
    assert fleet.calls == []


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"nonsense"])
async def test_bodies_that_are_no_json(client, fleet, body):
    answer = await client.post("/admin/workers", data=body, headers={"Content-Type": "application/json"})
    assert answer.status == 400
    assert "not valid JSON" in await problem(answer)


async def test_a_form_from_another_site_changes_nothing(client, fleet):
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}):
        answer = await client.post("/admin/workers/a/drain", data=b"{}", headers=headers)
        assert answer.status == 400
        assert "expected application/json" in await problem(answer)
    assert fleet.calls == []


async def test_large_bodies_are_refused(client):
    answer = await client.post("/admin/workers", json={"url": "x" * 100_000})
    assert answer.status == 413
    assert "too large" in await problem(answer)


async def test_every_route_but_the_page_asks_for_the_token(guarded, fleet):
    for method, path in [
        ("GET", "/admin/state"),
        ("GET", "/metrics"),
        ("GET", "/admin/explain/1"),
        ("POST", "/admin/workers"),
        ("DELETE", "/admin/workers/a"),
        ("PATCH", "/admin/policy"),
        ("GET", "/admin/nothing"),
    ]:
        answer = await guarded.request(method, path, headers={"Authorization": "Bearer wrong"})
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in await problem(answer)
    assert (await guarded.get("/")).status == 200
    assert (await guarded.get("/admin/state", headers=AUTH)).status == 200
    assert (await guarded.get("/admin/state", headers=AUTH | {"Host": "router.example"})).status == 200
    assert fleet.calls == []


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:80", "127.8.8.8", "[::1]:9"])
async def test_without_a_token_this_machine_is_answered(client, host):
    assert (await client.get("/admin/state", headers={"Host": host})).status == 200


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1:80", "localhost.evil.example", "[::2]", "127.0.0.1.evil"])
async def test_without_a_token_no_other_name_is_answered(client, host):
    answer = await client.get("/admin/state", headers={"Host": host})
    assert answer.status == 403
    assert "set a token" in await problem(answer)


@pytest.mark.parametrize("token", ["", "   "])
def test_empty_tokens_are_refused(token, fleet):
    with pytest.raises(ConfigError, match="admin token is empty"):
        build_admin_app(fleet, RouterMetrics(), token)
