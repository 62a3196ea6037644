"""The documentation is true: its code runs, the tests it names exist, its dependencies are those of the package."""

import re
import tomllib
from pathlib import Path

import pytest

from bidroute.policies import registry
from bidroute.traces import formats

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The python blocks of a page, each at the line it stands on, so that errors point into the page."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top to bottom in one namespace; blocks in other languages are not run. What they register is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))
    monkeypatch.setattr(formats, "FORMATS", dict(formats.FORMATS))
    namespace: dict[str, object] = {"__name__": f"docs.{page.stem}"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def _names_of_tests() -> set[str]:
    """Every test function, and every state machine that is run as a test."""
    found: set[tuple[str, str]] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"^(?:async )?def (test_\w+)|^(Test\w+) =", text, re.MULTILINE))
    return {name for pair in found for name in pair if name}


@pytest.mark.parametrize("page", ["invariants.md", "how-it-works.md"])
def test_every_test_named_exists(page: str) -> None:
    named = set(re.findall(r"`([Tt]est_\w+)`", (ROOT / "docs" / page).read_text(encoding="utf-8")))
    assert len(named) >= 10
    assert named - _names_of_tests() == set()


def test_every_invariant_has_a_test_with_its_number() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \|(.*)$", text, re.MULTILINE))
    assert list(rows) == [str(number) for number in range(1, 13)]
    for number, row in rows.items():
        assert f"`test_invariant_{number}_" in row


def test_dependencies_are_those_of_the_package() -> None:
    """Each has its line, in the table of its extra, with a reason."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {(_name(line), "") for line in project["dependencies"]}
    for extra, lines in project["optional-dependencies"].items():
        wanted |= {(_name(line), extra) for line in lines if not line.startswith("bidroute[")}
    always, extras = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").split("## Extras")
    listed = {(cells[0], "") for cells in _rows(always)} | {(cells[0], cells[1]) for cells in _rows(extras)}
    assert listed == wanted
    assert all(cells[1] for cells in _rows(always))
    assert all(cells[2] for cells in _rows(extras))


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0]


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] != "package" and not row[0].startswith("-")]
