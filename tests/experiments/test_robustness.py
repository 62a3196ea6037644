from dataclasses import replace

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings
from bidroute.experiments.load import estimate_load
from bidroute.experiments.robustness import GUARDED, REFERENCE, RobustnessSettings, failures, run_cases
from bidroute.experiments.robustness_cases import CASES, chosen_cases
from bidroute.experiments.scenario import prepare
from bidroute.experiments.variations import device_models

BASE = ScenarioSettings(requests=120, devices=3, kv_tokens=20_000)
# Those the issue of this command names, by group.
GROUPS = (
    *("length noise", "biased predictions", "load", "arrivals", "mix"),
    *("unlike devices", "fleet changes", "slots bind"),
)


@pytest.fixture(scope="module")
def results():
    cases = chosen_cases(["no lengths", "noise 0.6, ×2", "three, ever slower", "fleet changes"])
    return run_cases(RobustnessSettings(tuple(cases), baselines=("fifo+safety",), base=BASE, seeds=2))


def test_every_policy_runs_to_the_end_in_every_case(results):
    assert [result.case.name for result in results] == [
        *("no lengths", "noise 0.6, ×2", "three, ever slower"),
        *("device lost", "device joined", "lost, then joined"),
    ]
    for result in results:
        assert result.runs.policies == ["bid_price", REFERENCE, "fifo+safety"]
        assert all(run.row["unfinished"] == run.row["refused"] == 0 for run in result.runs.results)


def test_who_differs_by_speed_alone_runs_on_unlike_devices_only():
    settings = RobustnessSettings(CASES)
    for case in CASES:
        assert ("weighted_least_connections" in settings.policies(case)) is bool(case.fleet)


def test_below_is_what_is_worse_by_more_than_a_tie(results):
    for result in results:
        changes = [result.against(REFERENCE, measure) for measure in GUARDED]
        assert [one.measure for one in result.below] == [one.measure for one in changes if one.relative >= 0.005]
        assert result.strongest in (REFERENCE, "fifo+safety")
    assert {result.case.name for result, _ in failures(results)} == {one.case.name for one in results if one.below}


def test_the_cases_cover_what_they_should():
    assert tuple(dict.fromkeys(case.group for case in CASES)) == GROUPS
    assert len({case.name for case in CASES}) == len(CASES)
    assert chosen_cases(None) == list(CASES)
    with pytest.raises(ConfigError, match="case 'earthquake' is unknown; choose a group"):
        chosen_cases(["earthquake"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_makes_a_scenario_under_its_load(case):
    base = replace(BASE, lengths=case.lengths)
    ordinary = prepare(base, [0], case.groups(20_000)).first
    scenario = case.scenario(ordinary)
    assert len(scenario.workload) == 120
    assert len(scenario.devices) == (len(case.fleet) or 3) + (case.name == "lost, then joined")
    if case.disturb is None:
        load = estimate_load(scenario.workload, device_models(scenario)).load
        assert load == pytest.approx(case.load)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="no trace or no case"):
        RobustnessSettings(())
    with pytest.raises(ConfigError, match="seeds: 0"):
        RobustnessSettings(CASES, seeds=0)
    with pytest.raises(ConfigError, match="jobs: 0"):
        run_cases(RobustnessSettings(CASES), 0)
    with pytest.raises(ConfigError, match="policy 'nothing' is unknown"):
        run_cases(RobustnessSettings(CASES, baselines=("nothing",)))
