"""The live page: one file that any browser opens, with no build step and nothing fetched from elsewhere.

The page itself holds no data. It asks `/admin/state` twice a second, with the admin token where one is set.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

# Nothing from other origins, no frames around it; its own script and style are inline.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def page_html() -> str:
    """The text of the page."""
    return files("bidroute.router").joinpath("page.html").read_text(encoding="utf-8")
