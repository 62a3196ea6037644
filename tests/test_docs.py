"""The documentation is true: its code runs, the tests it names exist, its dependencies are those of the package."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from bidroute.policies import registry
from bidroute.router.http_settings import HttpSettings
from bidroute.router.settings import RouterSettings, WorkerSettings, read_settings
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


def test_every_setting_of_serve_has_its_row_and_default() -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = {name: cells[1] for cells in _rows(text) for name in re.findall(r"`(\w+)`", cells[0])}
    for settings in (RouterSettings, WorkerSettings, HttpSettings):
        for field in msgspec.structs.fields(settings):
            assert field.name in rows
            if field.default not in (msgspec.NODEFAULT, None, "", ()) and not isinstance(field.default, HttpSettings):
                value = field.default if isinstance(field.default, str) else str(field.default).lower()
                assert rows[field.name] == f"`{value}`", field.name


def test_the_settings_shown_can_be_read(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "router.yaml").write_text(shown, encoding="utf-8")
    settings = read_settings(tmp_path / "router.yaml")
    assert [worker.name for worker in settings.workers] == ["10.0.0.1:8000", "a100"]


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
