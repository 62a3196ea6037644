import math

import pytest

from bidroute.errors import ConfigError
from bidroute.experiments import ScenarioSettings
from bidroute.experiments.ladder import RUNGS, LadderSettings, climb, worth_nothing
from bidroute.experiments.measures import MEASURES

SMALL = LadderSettings(
    traces=("builtin:azure-conv-like",),
    requests=150,
    lengths=("known", "none"),
    load=1.5,
    base=ScenarioSettings(devices=2, kv_tokens=20_000),
    seeds=2,
)
MEAN, P99 = MEASURES[:2]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return tmp_path_factory.mktemp("ladder") / "runs.jsonl"


@pytest.fixture(scope="module")
def ladder(journal):
    return climb(SMALL, 1, journal)


def test_every_rung_runs_in_every_cell(ladder):
    assert [(cell.binds, cell.lengths) for cell in ladder.cells] == [
        *(("kv", "known"), ("kv", "none")),
        *(("slots", "known"), ("slots", "none")),
    ]
    for cell in ladder.cells:
        assert cell.runs.policies == [rung.name for rung in RUNGS]
        assert cell.runs.seeds == [0, 1]
        assert all(run.row["unfinished"] == 0 for run in cell.runs.results)


def test_both_fleets_run_batches_of_the_same_size(ladder):
    kv, slots = (ladder.cells_of(binds, "none")[0].fleet for binds in ("kv", "slots"))
    assert slots["kv_tokens"] == 2 * kv["kv_tokens"]
    assert kv["batch_slots"] >= 4 * slots["batch_slots"]


def test_rungs_that_see_no_lengths_run_once_for_all(ladder, journal):
    known, none = ladder.cells_of("kv", "known")[0], ladder.cells_of("kv", "none")[0]
    for rung in RUNGS:
        same = [run.row for run in known.runs.of(rung.name)] == [run.row for run in none.runs.of(rung.name)]
        assert same is (not rung.sees_lengths), rung.name
    blind = sum(not rung.sees_lengths for rung in RUNGS)
    assert len(journal.read_text().splitlines()) == 2 * 2 * (blind + 2 * (len(RUNGS) - blind))


def test_the_ladder_leads_up(ladder):
    """Where KV binds and lengths are known: order and safety take time off the mean, and nobody is preempted."""
    (cell,) = ladder.cells_of("kv", "known")
    first, last = (cell.runs.spread(RUNGS[place].name, "e2e_s.mean").median for place in (0, -1))
    assert last < first
    assert cell.runs.values(RUNGS[0].name, "preemptions").min() > 0
    assert not cell.runs.values(RUNGS[3].name, "preemptions").any()


def test_a_step_is_measured_against_the_rung_below(ladder):
    (cell,) = ladder.cells_of("kv", "none")
    mine, below = (cell.runs.values(RUNGS[step].name, MEAN.path) for step in (2, 1))
    assert cell.changes(2, MEAN.path) == pytest.approx(mine / below - 1.0)
    worth = ladder.worth(2, MEAN, "kv", "none")
    assert worth.low <= worth.middle <= worth.high
    assert worth.verdict in (-1, 0, 1)


def test_nothing_climbed_is_worth_nothing(ladder):
    worth = ladder.worth(1, MEAN, "kv", "noisy")
    assert math.isnan(worth.middle)
    assert worth.verdict == 0
    assert set(worth_nothing(ladder, (MEAN, P99))) <= set(range(1, len(RUNGS)))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"binds": ("disk",)}, "binds 'disk'; expected some of: kv, slots"),
        ({"lengths": ()}, "lengths ''; expected some of: known, noisy, none"),
        ({"load": 0.0}, "load: 0"),
        ({"seeds": 0}, "seeds: 0"),
        ({"traces": ()}, "trace: none given"),
    ],
)
def test_wrong_settings_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        LadderSettings(**wrong)
    with pytest.raises(ConfigError, match="jobs: 0"):
        climb(SMALL, 0)
