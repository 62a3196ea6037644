"""Replicas that preempt, are unlike, or are chosen by Vidur's own schedulers."""

from pathlib import Path

import numpy as np
import pytest

from bidroute.integrations.vidur.setup import parse_options
from bidroute.integrations.vidur.simulation import Simulation
from tests.vidur.helpers import in_vidur, words, workload

pytestmark = pytest.mark.vidur


@pytest.mark.parametrize("decode_only", [True, False])
def test_preempted_requests_end_and_leave_no_lease(decode_only: bool, tmp_path: Path) -> None:
    """On PyPI's Vidur any preemption ends in an assertion, unless the request is ours."""
    options = {"bidroute_kv_tokens": [2500, 2500], "bidroute_decode_only": decode_only}
    simulation = Simulation(parse_options(words("join_shortest_queue", tmp_path, **options)), workload(120, 40.0))
    simulation.run()
    assert sum(request.num_restarts for request in simulation.requests) > 5
    assert all(request.completed for request in simulation.requests)
    assert simulation.policy is not None
    fleet = simulation.policy.controller.state.fleet
    assert not fleet.open_leases.any()
    assert not fleet.kv_tokens_used.any()
    assert [fleet.ledgers[device].periods > 0 for device in range(2)] == [True, True]


def test_the_ledger_is_the_occupancy_at_every_batch(tmp_path: Path) -> None:
    """Whatever joins, ends or is thrown out: the core has in its batch who is in Vidur's, with as many tokens."""
    options = {"bidroute_kv_tokens": [2500, 2500], "bidroute_decode_only": True}
    simulation = Simulation(parse_options(words("join_shortest_queue", tmp_path, **options)), workload(80, 40.0))
    assert simulation.policy is not None
    ledger, fleet = simulation.policy._ledger, simulation.policy.controller.state.fleet
    scheduled, checked = ledger.scheduled, 0

    def check(device: int, batch: object) -> None:
        nonlocal checked
        scheduled(device, batch)
        if batch is not None:
            ledger.tell(device)
            rows = fleet.ledgers[device]
            in_batch = dict(
                zip(rows.ids[rows.state > 0].tolist(), rows.decoded_tokens[rows.state > 0].tolist(), strict=True)
            )
            made = {
                r.id: max(0, r.num_processed_tokens - r.prompt_tokens) for r in batch.requests if r.num_restarts == 0
            }
            assert set(in_batch) >= {r.id for r in batch.requests}
            assert made.items() <= in_batch.items()
            checked += 1

    ledger.scheduled = check
    simulation.run()
    assert checked > 100


def test_lor_counts_waiting_requests_only_and_true_jsq_all(tmp_path: Path) -> None:
    """While nobody waits on a replica Vidur's LOR sees four equal ones, and takes the first."""
    arrivals = workload(100, 4.0)
    shares = {}
    for policy in ("lor", "join_shortest_queue", "power_of_d"):
        run = in_vidur(policy, tmp_path, arrivals, replicas=4, bidroute_decode_only=True)
        shares[policy] = np.bincount(run.device, minlength=4) / len(arrivals)
    assert shares["lor"][0] > 0.9
    assert shares["join_shortest_queue"].max() < 0.6
    assert shares["power_of_d"].max() < 0.6


def test_a_slower_and_smaller_replica_takes_less(tmp_path: Path) -> None:
    options = {"bidroute_speeds": [1.0, 0.25], "bidroute_batch_caps": [16, 4], "bidroute_decode_only": True}
    run = in_vidur("bid_price", tmp_path, workload(120, 60.0), **options)
    fast, slow = np.bincount(run.device, minlength=2)
    assert fast > 4 * slow > 0
    assert [device.batch_slots for device in run.devices] == [16, 4]
    assert run.devices[1].period_s > 2 * run.devices[0].period_s
    assert run.devices[0].speed > 1.0 > run.devices[1].speed


def test_the_kv_that_vidur_keeps_free_is_not_counted(tmp_path: Path) -> None:
    options = {
        "cache_config_block_size": 16,
        "cache_config_num_blocks": 500,
        "cache_config_watermark_blocks_fraction": 0.01,
    }
    run = in_vidur("fifo+safety", tmp_path, workload(20, 20.0), **options)
    assert {(device.kv_tokens, device.block_size) for device in run.devices} == {((500 - 5) * 16, 16)}
