import os
import re
from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import TestServer

from bidroute.core.objective import parse_objective
from bidroute.router.admin import build_admin_app
from bidroute.router.metrics import RouterMetrics
from bidroute.router.page import page_html
from bidroute.router.state import RouterState
from tests.router.browser import CHROMIUM, open_page
from tests.router.fleet_fakes import FakeFleet, busy_state

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def test_the_page_asks_nobody_else_for_anything():
    text = page_html()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w/]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<script[^>]+src|<link[^>]+stylesheet|@import|url\(", text)


def test_what_the_router_says_never_becomes_markup():
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page_html())


def test_every_field_that_the_page_reads_exists():
    fields = {name for kind in _structs(RouterState) for name in kind.__struct_fields__}
    read = set(re.findall(r"\b(?:w|d|decision|queue|totals|state|runner_up)\.([a-z]+(?:_[a-z]+)*)\b", page_html()))
    scripted = {"map", "filter", "push", "length", "join", "includes"}
    assert read - scripted <= fields


def _structs(kind):
    yield kind
    for field in msgspec.structs.fields(kind):
        for part in (field.type, *getattr(field.type, "__args__", ())):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from _structs(part)


def text_of(selector):
    return f"document.querySelector({selector!r}).innerText"


async def serve(fleet, token=None):
    server = TestServer(build_admin_app(fleet, RouterMetrics(), token))
    await server.start_server()
    return server


@in_browser
async def test_a_busy_router_is_shown_and_steered(tmp_path):
    fleet = FakeFleet()
    server = await serve(fleet)
    pictures = Path(os.environ.get("BIDROUTE_PICTURES", tmp_path))
    async with open_page() as page:
        await page.scheme("light")
        await page.open(str(server.make_url("/")))
        await page.until("document.querySelectorAll('#workers tr').length === 6")
        await _check_what_it_shows(page)
        await page.screenshot(pictures / "page-light.png")
        await _check_the_sliders(page, fleet)
        await _check_policy_and_explanation(page, fleet)
        await page.run("document.querySelector('#theme').click()")
        assert await page.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
        await page.screenshot(pictures / "page-dark.png")
        assert page.errors == []
        assert {url.partition("/")[0] for url in page.requests} <= {"http:", "data:", "about:blank"}
        assert all(str(server.make_url("/")) in url for url in page.requests if url.startswith("http"))
    await server.close()


async def _check_what_it_shows(page):
    workers = await page.run(text_of("#workers"))
    assert "61 / 64" in workers
    assert "down · breaker open" in workers
    assert "1 queued in the engine" in workers
    assert "prefill, ready · 5120 prompt tokens to do" in workers
    assert "31 for prefill · 56 prefilled" in await page.run(text_of("#halves"))
    assert "136 / 168" in (await page.run(text_of("#tiles"))).replace("\n", " ")  # without the prefill worker's
    assert await page.run("document.querySelectorAll('#workers svg path').length") == 5 * 2 * 2
    assert await page.run(text_of("#waiting")) == "87"
    assert "kv future 30" in await page.run(text_of("#held-legend"))
    decisions = await page.run(text_of("#decisions"))
    assert "the batch could outgrow the KV later; instead 48201" in decisions
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")
    overflowing = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert await page.run(overflowing) == 0


async def _check_the_sliders(page, fleet):
    slide = (
        "(range => { range.value = .5; for (const type of ['input', 'change']) range.dispatchEvent(new Event(type)); })"
    )
    await page.run(f"{slide}(document.querySelector('#weight-tail'))")
    await page.until("document.querySelector('#weight-tail').parentNode.querySelector('output').textContent === '13'")
    assert fleet.calls[-1][0] == "objective"
    assert parse_objective(fleet.objective) == parse_objective("balanced,tail=13")
    await page.run("document.querySelector('[data-preset=goodput]').click()")
    await page.until("document.querySelector('#weight-goodput').parentNode.querySelector('output').textContent === '2'")
    assert fleet.objective == "goodput"
    fleet.objective = "throughput=1,tail=0"
    await page.until("document.querySelector('#weight-tail').parentNode.querySelector('output').textContent === '0'")
    await page.run(f"{slide.replace('.5', '0')}(document.querySelector('#weight-throughput'))")
    await page.until("!document.querySelector('#objective-problem').hidden")
    assert "every weight is 0" in await page.run(text_of("#objective-problem"))
    fleet.objective = "balanced"


async def _check_policy_and_explanation(page, fleet):
    pick = "(select => { select.value = 'fifo'; select.dispatchEvent(new Event('change')); })"
    await page.run(f"{pick}(document.querySelector('#policy'))")
    await page.until("document.querySelector('#policy').value === 'fifo'")
    assert ("policy", "fifo") in fleet.calls
    press = "new PointerEvent('pointerdown', { bubbles: true, cancelable: true })"
    await page.run(f"document.querySelector('[data-explain=\"48209\"]').dispatchEvent({press})")
    await page.until("document.querySelector('#explanation').open")
    assert await page.run(text_of("#explanation-title")) == "48209: queued"
    explained = await page.run(text_of("#explanation-body"))
    assert "worth more to others" in explained
    assert "handed over on p-l4 after 400 ms, 1730 tokens in 150 ms" in explained
    await page.run("document.querySelector('#explanation').close()")


@in_browser
async def test_it_asks_for_the_token_and_takes_odd_names_as_text():
    fleet = FakeFleet()
    odd = "<img src=x onerror='document.title=1'>"
    worker = msgspec.structs.replace(busy_state().workers[0], name=odd, slot_price=[], kv_price=[])
    decision = msgspec.structs.replace(busy_state().decisions[1], request_id=odd, value=float("nan"))
    state = msgspec.structs.replace(busy_state(), workers=[worker], decisions=[decision], policy="own", objective={})
    fleet.state = lambda: state
    server = await serve(fleet, "s3cret")
    async with open_page(500, 1200) as page:
        await page.open(str(server.make_url("/")))
        await page.until("!document.querySelector('#token-form').hidden")
        await page.run("document.querySelector('#token').value = 's3cret'")
        await page.run("document.querySelector('#token-form').requestSubmit()")
        await page.until("document.querySelectorAll('#workers tr').length === 1")
        assert odd in await page.run(text_of("#workers"))
        assert await page.run("document.querySelectorAll('img').length") == 0
        assert await page.run("document.title") == "bidroute"
        assert await page.run("document.querySelector('#banner').hidden")
        assert await page.run("document.querySelector('#policy').value") == "own"
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        await server.close()
        await page.until("document.body.classList.contains('stale')")
        assert "does not answer" in await page.run(text_of("#problem"))
        assert page.errors == []


@in_browser
async def test_an_empty_router_is_no_error():
    fleet = FakeFleet()
    empty = RouterState(0.1, "fifo", {}, [], type(busy_state().queue)(), [], type(busy_state().totals)())
    fleet.state = lambda: empty
    server = await serve(fleet)
    async with open_page() as page:
        await page.open(str(server.make_url("/")))
        await page.until("document.querySelector('#workers').innerText.includes('No workers yet')")
        assert "nobody waits" in await page.run(text_of("#oldest"))
        assert page.errors == []
    await server.close()
