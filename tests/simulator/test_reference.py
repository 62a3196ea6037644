"""The ten scenarios of an independent simulator, request by request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.policies.base import Policy
from bidroute.simulator import EngineConfig, PrefillPool, Scenario, affine_decode, affine_prefill, simulate
from tests.simulator.helpers import NO_SHARED, SHARED, BlindCycle, Cycle, OneClass, workload

FOLDER = SHARED / "data/reference"
FILES = sorted(FOLDER.glob("s*.json"))
TOLERANCE_MS = 1e-3
MS = 1e-3
EVICTION = {"vllm": "preempt", "trtllm": "reserve"}
pytestmark = pytest.mark.skipif(not FILES, reason=NO_SHARED)


@dataclass
class Reference:
    scenario: Scenario
    ttft_ms: np.ndarray
    e2e_ms: np.ndarray
    preemptions: int
    worker: np.ndarray


def timing(model: str, params: list[float]) -> tuple[float, float, float, float]:
    """p0, p1, d0, d1 in ms; `fixed` has (prefill, decode), `decode_only` numbers that its file does not use up."""
    if model == "fixed":
        return params[0], 0.0, params[1], 0.0
    return params[0], params[1], params[2], params[3]


def load(path: Path) -> Reference:
    data: dict[str, Any] = json.loads(path.read_text())
    p0, p1, d0, d1 = timing(data["timing"]["model"], data["timing"]["params"])
    engine, rows = data["engine"], data["requests"]
    pools = data["workers"] if isinstance(data["workers"], list) else [0, data["workers"]]
    block_size = engine["block_size"]
    kv_tokens = engine["num_gpu_blocks"] * block_size
    config = EngineConfig(block_size, engine["max_num_batched_tokens"], EVICTION[data["backend"]])
    pool = PrefillPool()
    if data["prefill_engine"]:
        prefill = data["prefill_engine"]
        pool = PrefillPool(
            prefill["max_num_seqs"], prefill["num_gpu_blocks"] * block_size, prefill["max_num_batched_tokens"]
        )
    first_ms = rows[0]["arrival_ms"]
    scenario = Scenario(
        workload([((row["arrival_ms"] - first_ms) * MS, row["input"], row["output"]) for row in rows]),
        tuple(Device(f"w{index}", engine["max_num_seqs"], kv_tokens) for index in range(pools[1])),
        affine_decode(d0 * MS, 0.0, d1 * MS, minimum_s=1 * MS),
        affine_prefill(p0 * MS, p1 * MS),
        "disaggregated" if data["mode"] == "disagg" else "aggregated",
        pools[0],
        config,
        pool,
    )
    return Reference(
        scenario,
        np.array([row["ttft_ms"] for row in rows]),
        np.array([row["e2e_ms"] for row in rows]),
        data["readmissions"],
        np.array([row["worker"] for row in rows]),
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("policy", [Cycle, BlindCycle], ids=["looking", "blind"])
def test_every_request_matches_to_a_microsecond(path: Path, policy: type[Policy]) -> None:
    reference = load(path)
    result = simulate(reference.scenario, policy(), OneClass())
    ttft_ms = (result.first_token_s - result.arrival_s) / MS
    e2e_ms = (result.end_s - result.arrival_s) / MS
    np.testing.assert_allclose(ttft_ms, reference.ttft_ms, rtol=0, atol=TOLERANCE_MS)
    np.testing.assert_allclose(e2e_ms, reference.e2e_ms, rtol=0, atol=TOLERANCE_MS)
    np.testing.assert_array_equal(result.device, reference.worker)
    assert int(result.preemptions.sum()) == reference.preemptions
