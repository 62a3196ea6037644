"""`make soak`: ten thousand requests over ten workers. Prints what came of them; status 1 where anything was wrong."""

from __future__ import annotations

import argparse
import asyncio
import sys

import uvloop

from tests.soak.chaos import Chaos, Report

MOST_GROWTH_MIB = 100.0  # of memory between the first and the last quarter of the requests


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--fault-s", type=float, default=0.7, help="seconds between faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="bid_price")
    given = parser.parse_args()
    chaos = Chaos(given.requests, given.workers, given.seconds, fault_s=given.fault_s, seed=given.seed)
    report = uvloop.run(_run(chaos, given.policy))
    growth_mib = _growth_mib(report)
    if growth_mib > MOST_GROWTH_MIB:
        report.problems.append(f"memory grew by {growth_mib:.0f} MiB")
    for title, counts in (("ended", report.outcomes), ("faults", report.faults)):
        print(title + ":", ", ".join(f"{what} {count}" for what, count in counts.most_common()))
    print("memory:", ", ".join(f"{mib:.0f}" for mib in report.memory_mib), "MiB")
    for problem in report.problems:
        print("PROBLEM", problem)
    print("failed" if report.problems else "passed")
    return 1 if report.problems else 0


async def _run(chaos: Chaos, policy: str) -> Report:
    asyncio.get_running_loop().slow_callback_duration = 1.0
    return await chaos.run(policy=policy)


def _growth_mib(report: Report) -> float:
    samples = report.memory_mib
    quarter = max(len(samples) // 4, 1)
    return max(samples[-quarter:]) - max(samples[:quarter])


if __name__ == "__main__":
    sys.exit(main())
