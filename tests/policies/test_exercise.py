import pytest

from bidroute.core.devices import Device
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, build_policy
from bidroute.policies.exercise import exercise


@pytest.mark.parametrize("policy", ["bid_price", "fifo+safety", "round_robin"])
@pytest.mark.parametrize("beside", [False, True])
def test_everybody_is_served_and_nothing_is_left(policy: str, beside: bool) -> None:
    devices = [Device("a", 2, 2_000), Device("b", 1, 50)]
    controller = Controller(build_policy(policy), devices, build_predictor("hint"), learn_on_update=beside)
    exercise(controller, requests=8)
    assert controller.state.lengths.finished.sum() == 8
    assert not controller.state.fleet.open_leases.any()
    assert not len(controller.state.queue)
