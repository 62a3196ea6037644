"""`python -m tools.results`: make the results, or what is missing of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.results.making import FailedError, Plan, make
from tools.results.sections import SECTIONS, chosen

DEFAULT_FOLDER = Path("docs/results")


def run(words: list[str] | None = None) -> int:
    """Parse the options, make the results, and say what was skipped; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make results", description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where they go (docs/results)")
    parser.add_argument("--azure-conv", type=Path, help="your copy of AzureLLMInferenceTrace_conv.csv")
    parser.add_argument("--only", default="", help="commands by name, with commas, such as defaults,frontier-conv")
    parser.add_argument("--small", action="store_true", help="a small version of each, in a minute")
    options = parser.parse_args(words)
    if options.azure_conv is not None and not options.azure_conv.is_file():
        print(f"error: {options.azure_conv}: no such file; expected the Azure conversation trace", file=sys.stderr)
        return 2
    trace = None if options.azure_conv is None else options.azure_conv.resolve()
    try:
        skipped = make(chosen(SECTIONS, options.only), Plan(options.folder, trace, options.small))
    except (FailedError, ValueError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    print(f"results: {(options.folder / 'README.md').resolve()}" + (f", {len(skipped)} skipped" if skipped else ""))
    return 0


if __name__ == "__main__":
    sys.exit(run())
