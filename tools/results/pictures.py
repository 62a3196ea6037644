"""Pictures of the interactive charts, for pages without scripts: taken by a headless Chromium, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH_PX = 1100
DRAWN_MS = 5000  # of the page's own time, which passes at once
TIMEOUT_S = 120.0


def browser() -> str | None:
    """The Chromium to take pictures with; None where none is installed."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def take(page: Path, height_px: int, picture: Path) -> bool:
    """A PNG of the top of an HTML page; whether it was taken. Without a browser, or should it fail, there is none."""
    chromium = browser()
    picture.unlink(missing_ok=True)
    if chromium is None:
        return False
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    size = [f"--window-size={WIDTH_PX},{height_px}", f"--virtual-time-budget={DRAWN_MS}"]
    words = [chromium, *flags, *size, f"--screenshot={picture.resolve()}", page.resolve().as_uri()]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        picture.unlink(missing_ok=True)
    return picture.is_file()
