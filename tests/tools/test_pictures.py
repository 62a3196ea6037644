"""Pictures of charts for docs/results; the browser itself is tested where it is installed."""

import struct

import pytest
from tools.results import pictures
from tools.results.making import Plan, make
from tools.results.sections import Command, Section

PAGE = "<!doctype html><body style='background:#246'><p>chart</p>"
SWEEP = "sweep --requests 60 --seeds 1 --points 0 --jobs 1"


@pytest.mark.skipif(pictures.browser() is None, reason="no Chromium here")
def test_a_picture_is_as_wide_and_high_as_said(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(PAGE, encoding="utf-8")
    assert pictures.take(page, 320, tmp_path / "page.png")
    png = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", png[16:24]) == (pictures.WIDTH_PX, 320)


@pytest.mark.parametrize("browser", [None, "/bin/false", "/no/such/browser"])
def test_without_a_browser_that_works_there_is_none_and_an_old_one_is_not_left(tmp_path, monkeypatch, browser):
    picture = tmp_path / "page.png"
    picture.write_bytes(b"of another run")
    monkeypatch.setattr(pictures, "browser", lambda: browser)
    assert not pictures.take(tmp_path / "page.html", 320, picture)
    assert not picture.exists()


def test_the_page_shows_what_was_taken(tmp_path, monkeypatch):
    taken = []

    def take(page, height_px, picture):
        taken.append((page.name, page.is_file(), height_px))
        picture.write_bytes(b"picture")

    monkeypatch.setattr("tools.results.making.take", take)
    make([Section("Front", (Command("front", SWEEP, charts=True, picture_px=500),))], Plan(tmp_path))
    assert taken == [("front.html", True, 500)]
    assert "![front](front.png)" in (tmp_path / "README.md").read_text(encoding="utf-8")
