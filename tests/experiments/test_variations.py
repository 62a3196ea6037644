import numpy as np
import pytest

from bidroute.experiments import ScenarioSettings, variations
from bidroute.experiments.load import estimate_load
from bidroute.experiments.scenario import prepare


@pytest.fixture(scope="module")
def ordinary():
    return prepare(ScenarioSettings(requests=400), [0]).first


def load_of(scenario):
    return estimate_load(scenario.workload, variations.device_models(scenario)).load


def test_the_load_is_what_was_asked_for(ordinary):
    assert load_of(variations.at_load(ordinary, 0.4)) == pytest.approx(0.4)


def test_where_all_come_at_once_no_load_can_be_had(ordinary):
    crowd = variations.at_once(ordinary)
    assert not crowd.workload.arrival_s.any()
    assert variations.at_load(crowd, 0.4) is crowd


def test_the_rate_shifts_in_the_middle(ordinary):
    before, after = ordinary.workload.arrival_s, variations.rate_shift(ordinary, 1.5).workload.arrival_s
    np.testing.assert_allclose(after[:200], before[:200])
    np.testing.assert_allclose(np.diff(after[199:]), np.diff(before[199:]) / 1.5)


def test_bursts_leave_the_mean_rate_alone(ordinary):
    before, after = ordinary.workload.arrival_s, variations.bursts(ordinary, 100, 5.0).workload.arrival_s
    np.testing.assert_allclose(after[::100], before[::100])
    for start in range(0, 400, 100):
        block = slice(start, start + 100)
        assert np.ptp(after[block]) == pytest.approx(np.ptp(before[block]) / 5.0)


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_mix_has_its_share_of_prompt_tokens(ordinary, share):
    work, before = variations.mixed(ordinary, share, 25_000).workload, ordinary.workload
    prompts, outputs = work.prompt_tokens.sum(), work.output_tokens.sum()
    assert prompts / (prompts + outputs) == pytest.approx(share, abs=0.01)
    total = (before.prompt_tokens + before.output_tokens).sum()
    assert prompts + outputs == pytest.approx(total, rel=0.01)


def test_a_mix_fits(ordinary):
    work = variations.mixed(ordinary, 0.2, 1000).workload
    assert (work.prompt_tokens + work.output_tokens).max() <= 1000
    assert min(work.prompt_tokens.min(), work.output_tokens.min()) >= 1


def test_fleets_change_while_requests_arrive(ordinary):
    end_s = ordinary.workload.arrival_s[-1]
    (lost,) = variations.losing(ordinary).changes
    assert (lost.time_s, lost.device, lost.joins) == (pytest.approx(end_s / 2), 0, False)
    (joined,) = variations.joining(ordinary).changes
    assert (joined.device, joined.joins) == (3, True)
    replaced = variations.replacing(ordinary)
    assert [(one.device, one.joins) for one in replaced.changes] == [(0, False), (4, True)]
    assert len(replaced.devices) == len(replaced.latency) == 5
