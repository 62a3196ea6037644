"""Made-up outcomes with exact figures."""

from bidroute.experiments.frontier.candidates import BASELINE, FOUND, PRESET, Candidate
from bidroute.experiments.frontier.outcomes import Outcome
from bidroute.experiments.frontier.sweep import Sweep
from tests.report.fakes import SCENARIO


def row(mean, p99, ttft_p99=1.0, tokens=100.0, goodput=10.0, ttft_mean=0.5):
    latency = {"mean": mean, "p50": mean, "p90": p99, "p95": p99, "p99": p99}
    ttft = {"mean": ttft_mean, "p50": ttft_mean, "p90": ttft_p99, "p95": ttft_p99, "p99": ttft_p99}
    return {
        "e2e_s": latency,
        "ttft_s": ttft,
        "tpot_s": latency,
        "output_tokens_per_s": tokens,
        "requests_per_s": 1.0,
        "goodput": goodput,
        "preemptions": 0,
        "refused": 0,
        "unfinished": 0,
    }


def outcome(mean, p99, *, kind=FOUND, name="patience", value=1.0, seeds=1, **others):
    candidate = {
        FOUND: Candidate(FOUND, "bid_price", f"balanced,{name}={value:g}", ((name, value),)),
        PRESET: Candidate(PRESET, "bid_price", name),
        BASELINE: Candidate(BASELINE, name, "balanced"),
    }[kind]
    return Outcome(candidate, tuple(row(mean, p99, **others) for _ in range(seeds)))


def fake_sweep():
    """Two found on the front, one of them thanks to its tail; a preset that is beaten, one that is not, a baseline."""
    quick = outcome(2.0, 20.0, value=2.0)
    steady = outcome(3.0, 10.0, value=1.1)
    outcomes = [
        outcome(3.5, 12.0, kind=PRESET, name="latency"),
        outcome(2.5, 9.0, kind=PRESET, name="tail", tokens=90.0),
        outcome(5.0, 30.0, kind=BASELINE, name="round_robin"),
        quick,
        steady,
    ]
    scenario = {**SCENARIO, "command": "bidroute sweep", "search": "random", "knobs": []}
    return Sweep(scenario, outcomes, [steady, None, quick, None, None])
