import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings, explain

CROWDED = ScenarioSettings(requests=60, kv_tokens=20_000, devices=1, speedup=50.0)


@pytest.fixture(scope="module")
def explained():
    return explain(CROWDED, "fifo+safety")


def test_by_default_the_request_that_was_held_longest(explained):
    assert explained.chosen == "the one held longest"
    held_s = explained.held_s
    assert held_s == pytest.approx(explained.start_s - explained.arrival_s)
    for other in range(0, 60, 7):
        one = explain(CROWDED, "fifo+safety", other)
        assert one.held_s <= held_s


def test_it_has_every_decision_until_the_release(explained):
    waits = [epoch.wait_s for epoch in explained.epochs]
    assert waits == sorted(waits)
    assert all(epoch.held_by is not None for epoch in explained.epochs[:-1])
    last = explained.epochs[-1]
    assert last.held_by is None
    assert last.device == explained.device
    assert last.now_s == pytest.approx(explained.start_s)
    assert {epoch.request_id for epoch in explained.epochs} == {explained.request_id}


def test_the_token_budget_is_a_price_where_there_is_one():
    settings = ScenarioSettings(requests=60, devices=1, mode="aggregated", engine="max_batched_tokens=512")
    mixed, plain = explain(settings, "bid_price"), explain(CROWDED, "bid_price")
    assert {tuple(epoch.price) for epoch in mixed.epochs} == {("slots", "kv", "token_budget")}
    assert {tuple(epoch.price) for epoch in plain.epochs} == {("slots", "kv")}
    for epoch in mixed.epochs:
        assert epoch.value == pytest.approx(sum(epoch.reward.values()) - sum(epoch.price.values()))


def test_a_request_that_was_refused_has_no_decisions(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,9000,5\n")
    refused = explain(ScenarioSettings(trace=str(path), kv_tokens=100), "fifo+safety", 1)
    assert (refused.outcome, refused.epochs, refused.start_s, refused.device) == ("refused", [], None, None)


@pytest.mark.parametrize("request_id", [-1, 60])
def test_a_request_outside_the_run_is_refused(request_id):
    with pytest.raises(ConfigError, match="this run has requests 0 to 59"):
        explain(CROWDED, "fifo+safety", request_id)


def test_wrong_seeds_and_policies_are_refused():
    with pytest.raises(ConfigError, match="seed: -1"):
        explain(CROWDED, "fifo+safety", seed=-1)
    with pytest.raises(ConfigError, match="policy 'nothing' is unknown"):
        explain(CROWDED, "nothing")
