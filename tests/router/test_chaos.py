"""A small chaos: no lease leaked, no token lost or doubled, no request stuck. `make soak` is the large one."""

from __future__ import annotations

import pytest

from tests.soak.chaos import Chaos


@pytest.mark.parametrize(("policy", "requests"), [("bid_price", 600), ("round_robin", 150)])
async def test_nothing_is_lost_while_everything_breaks(policy: str, requests: int) -> None:
    chaos = Chaos(requests, workers=5, seconds=requests / 100, fault_s=0.3, seed=1)
    report = await chaos.run(policy=policy)
    assert report.problems == []
    assert sum(report.outcomes.values()) == requests
    assert report.outcomes["whole"] > 0.5 * requests
    assert report.faults.total() > 2
