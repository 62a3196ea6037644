"""`python -m tools.results_vidur`: run the paper's experiments in Vidur, and write their tables into docs/vidur.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bidroute.errors import BidrouteError
from bidroute.experiments.workers import cores
from tools.results_vidur.experiments import EXPERIMENTS, REQUESTS, SEEDS, cases
from tools.results_vidur.page import write_tables
from tools.results_vidur.running import finished, run_all

JOURNAL = Path("docs/results/bidroute-vidur.jsonl")
PAGE = Path("docs/vidur.md")


def make(words: list[str] | None = None) -> int:
    """Parse the options, run what the journal does not have, write the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make results-vidur", description=__doc__)
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="where finished runs are noted")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page whose tables are replaced")
    parser.add_argument("--only", default="", help="experiments by name, with commas")
    parser.add_argument("--made", action="store_true", help="run nothing: tables of the runs that are finished")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds, from 0 on")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes; all cores if not given")
    options = parser.parse_args(words)
    names = tuple(options.only.split(",")) if options.only else tuple(one.name for one in EXPERIMENTS)
    try:
        wanted = list(cases(options.requests, tuple(range(options.seeds)), names))
        rows = finished(wanted, options.journal) if options.made else run_all(wanted, options.journal, options.jobs)
        write_tables(rows, options.page)
    except BidrouteError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"results: {options.page.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(make())
