"""The live demo, with a rotation in the router's place."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.replay.demo import FLEET, Demo, demo_workload, router_config, run_demo
from bidroute.replay.processes import Child, free_port

ROTATION = (sys.executable, str(Path(__file__).with_name("rotation.py")))


def test_every_request_fits_every_worker() -> None:
    workload = demo_workload(Demo())
    peak = int(np.max(workload.prompt_tokens + workload.output_tokens))
    assert peak <= min(worker.kv_tokens for worker in FLEET)
    assert workload.arrival_s[-1] < 60


def test_the_router_is_told_addresses_slots_and_the_policy() -> None:
    config = router_config("bid_price", ["http://a", "http://b", "http://c"])
    assert config["policy"] == "bid_price"
    assert [set(worker) for worker in config["workers"]] == [{"url", "name", "batch_slots"}] * 3  # type: ignore[attr-defined]


def test_it_runs_and_compares() -> None:
    said: list[str] = []
    comparison = run_demo(Demo(("one",), requests=12, time_scale=20.0, router=ROTATION), said.append, lambda *_: None)
    assert comparison.policies == ["one"]
    (result,) = comparison.results
    assert (result.row["refused"], result.row["unfinished"], result.row["preemptions"]) == (0, 0, 0)
    assert len(result.row["workers"]) == 3
    assert said[0].startswith("one: router at http://127.0.0.1:")


async def test_what_does_not_start_is_told_in_one_line(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path / "log")
    with pytest.raises(ConfigError, match="said: no such thing"):
        await child.answers(f"http://127.0.0.1:{free_port()}")
    await child.end()


@pytest.mark.parametrize("wrong", [{"requests": 1}, {"time_scale": 0.0}, {"policies": ()}])
def test_wrong_demos_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Demo(**wrong)  # type: ignore[arg-type]
