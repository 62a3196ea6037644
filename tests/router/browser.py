"""A headless Chromium, driven over its DevTools socket: enough to open a page, run script in it and take pictures."""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Without these it looks for updates and the like, which a closed network refuses over and over.
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
]


class Page:
    """One tab. `requests` are the URLs it asked for, `errors` what its scripts threw."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._socket = socket
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()

    async def listen(self) -> None:
        async for message in self._socket:
            news = message.json()
            if "id" in news:
                self._answers.pop(news["id"]).set_result(news)
            elif news["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif news["method"] == "Network.requestWillBeSent":
                self.requests.append(news["params"]["request"]["url"])
            elif news["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(news["params"]["exceptionDetails"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        news = await asyncio.wait_for(answer, 60)
        assert "error" not in news, news
        return news["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(60):
            while not await self.run(script):
                await asyncio.sleep(0.05)

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), 60)

    async def scheme(self, name: str) -> None:
        """What the user's system prefers: light or dark."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def screenshot(self, path: Path) -> None:
        picture = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(picture["data"]))


@asynccontextmanager
async def open_page(width: int = 1440, height: int = 1000) -> AsyncIterator[Page]:
    """A tab of a new browser with an empty profile."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    listener = asyncio.create_task(page.listen())
                    for domain in ("Page", "Runtime", "Network"):
                        await page.call(f"{domain}.enable")
                    yield page
                    await socket.close()
                    await listener
        finally:
            process.terminate()
            await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(120):
        while not (file.exists() and file.read_text().strip()):
            await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])
