import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings, compare
from bidroute.experiments.comparison import DEFAULT_POLICIES, chosen_policies
from bidroute.policies import compared_names, policy_names

SMALL = ScenarioSettings(requests=60, kv_tokens=20_000, devices=2)
POLICIES = ["join_shortest_queue", "round_robin"]


@pytest.fixture(scope="module")
def comparison():
    return compare(SMALL, POLICIES, seeds=2, keep_timelines=True, keep_requests=True)


def test_one_result_per_policy_and_seed_in_the_order_asked_for(comparison):
    runs = [(result.policy, result.seed) for result in comparison.results]
    assert runs == [(policy, seed) for policy in POLICIES for seed in (0, 1)]
    assert comparison.scenario["policies"] == POLICIES


def test_every_policy_sees_the_same_arrivals(comparison):
    for seed in (0, 1):
        arrivals = [comparison.of(policy)[seed].requests.arrival_s for policy in POLICIES]
        np.testing.assert_array_equal(*arrivals)
    assert comparison.results[0].requests.arrival_s[30] != comparison.results[1].requests.arrival_s[30]


def test_figures_agree_with_the_requests(comparison):
    for result in comparison.results:
        assert result.row["e2e_s"]["mean"] == pytest.approx(np.nanmean(result.requests.e2e_s))
        assert result.e2e_quantiles_s[-1] == pytest.approx(np.nanmax(result.requests.e2e_s))


def test_the_first_seed_is_recorded_over_time(comparison):
    first, second = comparison.of("round_robin")
    assert second.timeline is None
    assert 0.0 < first.timeline.slots_used.max() <= 1.0
    assert 0.0 < first.timeline.kv_used.max() <= 1.0
    assert first.timeline.slot_price is None


def test_the_same_settings_give_the_same_figures_over_any_number_of_processes(comparison):
    again = compare(SMALL, POLICIES, seeds=2, jobs=2)
    timed = {"decision_us", "wall_s", "cpu_s"}
    for one, other in zip(comparison.results, again.results, strict=True):
        assert {k: v for k, v in one.row.items() if k not in timed} == {
            k: v for k, v in other.row.items() if k not in timed
        }


def test_held_requests_are_split_by_reason():
    crowded = ScenarioSettings(requests=60, kv_tokens=20_000, devices=1, speedup=50.0)
    timeline = compare(crowded, ["fifo+safety"], seeds=1, keep_timelines=True).results[0].timeline
    split = sum(timeline.held.values())
    assert np.all(split <= timeline.waiting + 1e-9)
    assert split.max() > 0.0


def test_progress_is_told():
    told = []
    compare(SMALL, ["round_robin"], seeds=2, on_progress=lambda *one: told.append(one))
    assert told == [(1, 2, "round_robin, seed 0"), (2, 2, "round_robin, seed 1")]


def test_requests_that_fit_nowhere_are_counted_and_noted(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,9000,5\n2,30,7\n")
    settings = ScenarioSettings(trace=str(path), kv_tokens=100)
    comparison = compare(settings, ["round_robin"], seeds=1)
    assert comparison.results[0].row["refused"] == 1
    assert any("1 requests" in note and "refused" in note for note in comparison.notes)


def test_when_all_are_refused_it_is_an_error(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,500\n")
    with pytest.raises(ConfigError, match="every request of trace needs 510 KV tokens"):
        compare(ScenarioSettings(trace=str(path), kv_tokens=100), ["round_robin"], seeds=1)


def test_an_odd_load_is_noted_with_the_option_that_mends_it(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n100,10,5\n")
    notes = compare(ScenarioSettings(trace=str(path)), ["round_robin"], seeds=1).notes
    assert any("--load" in note for note in notes)


@pytest.mark.parametrize(
    ("policies", "seeds", "jobs", "says"),
    [
        (["best_effort"], 1, 1, "policy 'best_effort' is unknown; choose from: "),
        ([""], 1, 1, "policies: none given"),
        (["round_robin"], 0, 1, "seeds: 0"),
        (["round_robin"], 1, 0, "jobs: 0"),
    ],
)
def test_wrong_settings_are_refused(policies, seeds, jobs, says):
    with pytest.raises(ConfigError, match=says):
        compare(SMALL, policies, seeds, jobs)


def test_the_policies_compared():
    assert chosen_policies(None) == [name for name in DEFAULT_POLICIES if name in policy_names()]
    assert chosen_policies(["all"]) == compared_names()
    assert chosen_policies([" fifo", "random", "fifo"]) == ["fifo", "random"]
