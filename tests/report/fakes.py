"""A made-up comparison: three policies, two seeds; exact figures that tests can check by hand."""

import numpy as np

from bidroute.experiments.results import Comparison, RequestColumns, Result, Timeline, quantiles

SCENARIO = {
    "trace": "builtin:azure-conv-like",
    "mode": "decode",
    "lengths": "none",
    "objective": "balanced",
    "workload": {"requests": 200, "speedup": 13.0, "requests_per_s": 70.0, "duration_s": 30.0},
    "fleet": [
        {"name": "device", "count": 4, "batch_slots": 128, "kv_tokens": 50_000, "latency": "affine:0.006,5e-05,5e-08"}
    ],
    "load": {"load": 0.95, "binding": "KV cache", "capacity_requests_per_s": 73.0},
    "seeds": [0, 1],
    "command": "bidroute compare --trace builtin:azure-conv-like",
}


def statistics(mean, p99):
    return {"mean": mean, "p50": mean * 0.8, "p90": p99 * 0.6, "p95": p99 * 0.8, "p99": p99}


def result(policy, seed, e2e, ttft, tokens_per_s, preemptions, *, prices=False):
    rng = np.random.default_rng(seed)
    waits = rng.exponential(ttft, 200)
    points = np.linspace(0.0, 40.0, 300)
    wave = np.abs(np.sin(points / 12.0))
    timeline = Timeline(
        time_s=points,
        waiting=60 * wave,
        pending=np.zeros_like(points) if prices else 20 * wave,
        slots_used=0.3 + 0.2 * wave,
        kv_used=0.6 + 0.4 * wave,
        held={"price": 30 * wave, "kv future": 20 * wave, "order": 10 * wave},
        slot_price=0.01 * wave if prices else None,
        kv_price=0.2 * wave if prices else None,
        token_price=0.05 * wave if prices else None,
    )
    columns = RequestColumns(
        arrival_s=np.sort(rng.uniform(0, 30, 200)),
        prompt_tokens=np.full(200, 100),
        output_tokens=np.full(200, 50),
        device=np.zeros(200, dtype=np.int64),
        ttft_s=np.append(waits[1:], np.nan),
        e2e_s=np.append(waits[1:] + 3.0, np.nan),
        held_s=np.zeros(200),
        preemptions=np.zeros(200, dtype=np.int64),
    )
    row = {
        "e2e_s": statistics(*e2e),
        "ttft_s": statistics(ttft, 4 * ttft),
        "tpot_s": statistics(0.01, 0.02),
        "output_tokens_per_s": tokens_per_s,
        "requests_per_s": 60.0,
        "goodput": None,
        "preemptions": preemptions,
        "wasted_tokens": 10 * preemptions,
        "refused": 1,
        "unfinished": 0,
        "decision_us": {"p50": 12.0, "p99": 80.0},
        "wall_s": 1.0,
        "cpu_s": 0.9,
    }
    return Result(policy, seed, row, quantiles(columns.e2e_s), quantiles(columns.ttft_s), timeline, columns)


def fake_comparison():
    """bid_price beats fifo+safety on all but E2E p99; join_shortest_queue is the worst."""
    return Comparison(
        dict(SCENARIO),
        [
            result("join_shortest_queue", 0, (13.0, 27.0), 10.0, 12_690.0, 1046),
            result("join_shortest_queue", 1, (14.0, 28.0), 11.0, 12_600.0, 1000),
            result("fifo+safety", 0, (8.0, 15.0), 5.6, 14_000.0, 0),
            result("fifo+safety", 1, (8.4, 15.4), 5.8, 14_100.0, 0),
            result("bid_price", 0, (6.0, 16.5), 3.0, 14_200.0, 0, prices=True),
            result("bid_price", 1, (6.3, 16.6), 3.1, 14_300.0, 0, prices=True),
        ],
        ["1 request fits no device and was refused"],
    )
