"""A small version of the paper's experiments, made as `make results-vidur` makes them."""

from pathlib import Path

import pytest
from tools.results_vidur.__main__ import make
from tools.results_vidur.page import BEGIN, END

pytestmark = pytest.mark.vidur


def test_a_small_version_of_the_tables_is_made_and_finished_runs_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, journal = tmp_path / "vidur.md", tmp_path / "bidroute-vidur.jsonl"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    words = [
        "--page",
        str(page),
        "--journal",
        str(journal),
        "--only",
        "over,unlike",
        "--requests",
        "40",
        "--seeds",
        "1",
    ]
    assert make(words) == 0
    printed = capsys.readouterr().out
    assert "[15/15] " in printed
    assert "] unlike, bid_price, balanced, seed 0" in printed
    text = page.read_text(encoding="utf-8")
    assert "| E2E mean | +45.75 |" in text
    assert "### slots bind, two replicas of half the slots and speed (40 requests, load 1.4" in text
    for line in text.splitlines():
        if line.startswith(("| bid_price", "| LOR (Vidur's")):
            assert line.endswith("| 0 | 0 | 0 |")
    assert make(words) == 0
    assert capsys.readouterr().out.splitlines() == [f"results: {page}"]
    assert page.read_text(encoding="utf-8") == text
