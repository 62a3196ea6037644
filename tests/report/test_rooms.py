from pathlib import Path

import bidroute


def test_experiments_and_reports_never_import_the_command_line():
    package = Path(bidroute.__file__).parent
    for room, forbidden in (
        ("report", ("cli",)),
        ("experiments", ("cli", "report")),
        ("simulator", ("experiments",)),
        ("worker", ("cli", "experiments", "replay", "report", "router")),
        ("replay", ("cli", "router", "simulator", "worker")),
    ):
        for file in (package / room).glob("*.py"):
            for name in forbidden:
                assert f"bidroute.{name}" not in file.read_text(encoding="utf-8"), file
