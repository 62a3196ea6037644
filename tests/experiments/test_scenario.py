import pytest

from bidroute.errors import ConfigError
from bidroute.experiments.describe import describe
from bidroute.experiments.load import TARGET_LOAD
from bidroute.experiments.scenario import prepare
from bidroute.experiments.settings import ScenarioSettings
from bidroute.simulator import kv_capacity, latency_names

FLEET = """
devices:
- {name: fast, count: 2, batch_slots: 64, kv_tokens: 40000, latency: "affine:0.005,0,0"}
- {name: slow, batch_slots: 64, kv_tokens: 40000, latency: "affine:0.01,0,0"}
"""


def fleet_settings(tmp_path, text, **more):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return ScenarioSettings(requests=100, fleet=path, **more)


def test_a_builtin_workload_is_drawn_by_seed_and_brought_to_the_target_load():
    experiment = prepare(ScenarioSettings(requests=400), [0, 1])
    assert experiment.load.load == pytest.approx(TARGET_LOAD, rel=0.01)
    assert experiment.load.binding == "KV cache"
    first, second = (scenario.workload for scenario in experiment.scenarios.values())
    assert first.prompt_tokens.tolist() != second.prompt_tokens.tolist()


def test_any_workload_is_brought_to_the_load_asked_for(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1.5,20,6\n3,30,7\n")
    for settings in (ScenarioSettings(requests=400, load=0.4), ScenarioSettings(trace=str(path), load=0.4)):
        assert prepare(settings, [0]).load.load == pytest.approx(0.4, rel=0.01)


def test_a_recorded_trace_is_the_same_for_every_seed_as_recorded(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1.5,20,6\n3,30,7\n")
    experiment = prepare(ScenarioSettings(trace=str(path), lengths="noisy:0.5"), [0, 1])
    first, second = (scenario.workload for scenario in experiment.scenarios.values())
    assert first.arrival_s.tolist() == second.arrival_s.tolist() == [0, 1.5, 3]
    assert experiment.speedup == 1.0
    assert experiment.predictions[0].tolist() != experiment.predictions[1].tolist()
    sped = prepare(ScenarioSettings(trace=str(path), speedup=3.0), [0])
    assert sped.first.workload.arrival_s.tolist() == [0, 0.5, 1]


def test_pace_and_speed_follow_each_devices_latency(tmp_path):
    devices = prepare(fleet_settings(tmp_path, FLEET), [0]).first.devices
    assert [device.name for device in devices] == ["fast-0", "fast-1", "slow-2"]
    assert [device.period_s for device in devices] == pytest.approx([0.005, 0.005, 0.01])
    assert [device.speed for device in devices] == pytest.approx([1.2, 1.2, 0.6])


def test_token_budgets_are_known_where_devices_prefill(tmp_path):
    """That of the engine, unless a group has its own; the engine's may be hidden from the router."""
    text = "devices:\n- {batch_slots: 8, kv_tokens: 40000}\n- {batch_slots: 8, kv_tokens: 40000, token_budget: 512}"
    for mode, budget, expected in (
        ("aggregated", "told", [2048, 512]),
        ("aggregated", "hidden", [0, 512]),
        ("decode", "told", [0, 0]),
    ):
        engine = f"max_batched_tokens=2048,budget={budget}"
        devices = prepare(fleet_settings(tmp_path, text, mode=mode, engine=engine), [0]).first.devices
        assert [device.token_budget for device in devices] == expected


def test_a_named_latency_brings_its_kv_capacity(tmp_path):
    name = latency_names()[0]
    assert prepare(ScenarioSettings(requests=50, latency=name), [0]).first.devices[0].kv_tokens == kv_capacity(name)
    text = f"devices: [{{batch_slots: 8, latency: {name}}}]"
    assert prepare(fleet_settings(tmp_path, text), [0]).first.devices[0].kv_tokens == kv_capacity(name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("devices: [{batch_slots: 8}]", r"fleet.yaml: devices\[0\].kv_tokens: missing"),
        ("devices: [{batch_slots: 8, kv_tokens: 9000, latency: h1000}]", r"fleet.yaml: devices\[0\]: latency 'h1000'"),
        ("devices: [{batch_slots: 8, kv_tokens: 9000, prefill: 'affine:1'}]", r"fleet.yaml: devices\[0\]: latency"),
    ],
)
def test_a_group_that_cannot_be_built_is_refused_by_its_place(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        prepare(fleet_settings(tmp_path, text), [0])


def test_modes_get_the_prefill_models_they_need():
    assert prepare(ScenarioSettings(requests=50), [0]).first.prefill is None
    aggregated = prepare(ScenarioSettings(requests=50, mode="aggregated"), [0]).first
    assert len(aggregated.prefill) == len(aggregated.devices)
    split = prepare(ScenarioSettings(requests=50, mode="disaggregated:2"), [0]).first
    assert (split.prefill_workers, split.prefill.name) == (2, "affine:0.005,4e-05")


def test_a_fleet_too_small_for_every_request_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"every request of azure-conv-like needs .* KV tokens or more"):
        prepare(ScenarioSettings(requests=50, kv_tokens=3), [0])


def test_the_description_has_what_is_needed_to_run_it_again(tmp_path):
    data = describe(prepare(fleet_settings(tmp_path, FLEET, mode="aggregated"), [0, 1]))
    assert data["workload"]["requests"] == 100
    assert data["seeds"] == [0, 1]
    assert [group["count"] for group in data["fleet"]] == [2, 1]
    assert data["fleet"][0]["speed"] > 1.0 > data["fleet"][1]["speed"]
    assert data["fleet"][0]["prefill"] == "affine:0.005,4e-05"
    assert "prefill" not in describe(prepare(ScenarioSettings(requests=50), [0]))["fleet"][0]


def test_block_sizes_are_described_as_they_are(tmp_path):
    assert described_block_sizes(ScenarioSettings(requests=50)) == (1, [1])
    assert described_block_sizes(ScenarioSettings(requests=50, engine="block_size=16")) == (16, [16])
    unlike = "devices:\n- {batch_slots: 8, kv_tokens: 20000, block_size: 16}\n- {batch_slots: 8, kv_tokens: 20000}\n"
    assert described_block_sizes(fleet_settings(tmp_path, unlike)) == (None, [16, 1])
    assert described_block_sizes(fleet_settings(tmp_path, unlike, engine="block_size=32")) == (32, [32, 32])


def described_block_sizes(settings):
    """Of the engines in general, and of each group."""
    data = describe(prepare(settings, [0]))
    return data["engine"]["block_size"], [group["block_size"] for group in data["fleet"]]
