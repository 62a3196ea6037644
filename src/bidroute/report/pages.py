"""What every HTML page shares: one file with style, script, plotly.js and data inside, which opens offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any


def whole_page(title: str, body: str, data: Any, *, styles: Sequence[str], script: str) -> str:
    """The page. `styles` and `script` are names of files beside this one; the script finds `data` as JSON."""
    from plotly.offline import get_plotlyjs  # heavy, and needed only here

    style = "".join(map(_text, styles))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>bidroute: {escape(title)}</title>\n<style>{style}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f'<script type="application/json" id="report-data">{_script_json(data)}</script>\n'
        f"<script>{_text(script)}</script>\n</body>\n</html>\n"
    )


def _text(name: str) -> str:
    return resources.files("bidroute.report").joinpath(name).read_text(encoding="utf-8")


def _script_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
