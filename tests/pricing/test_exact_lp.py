import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.pricing.exact_lp import Instance, column, dual_value, is_feasible, solve_integer, solve_lp


def instance(
    jobs: list[tuple[int, int, int, float]], slots: int, kv_tokens: int, periods: int, devices: int = 1
) -> Instance:
    """Jobs of (arrival, prompt, output, reward); the reward does not depend on device or start."""
    columns = np.array([job[:3] for job in jobs], dtype=np.int64).T
    reward = np.array([job[3] for job in jobs])[:, None, None] * np.ones((1, devices, periods))
    return Instance(*columns, reward, np.full(devices, slots), np.full(devices, kv_tokens))


def test_column_holds_prompt_and_one_token_more_every_period() -> None:
    slots, tokens, budget = column(instance([(0, 3, 4, 1.0)], 1, 10, 6), 0, 1)
    assert slots.tolist() == [0, 1, 1, 1, 1, 0]
    assert tokens.tolist() == [0, 4, 5, 6, 7, 0]
    assert budget.tolist() == [0] * 6


def mixed(jobs: list[tuple[int, int, int, float]], budget: int, chunk: int, periods: int) -> Instance:
    """One device with room for all, but for a token budget per period."""
    one = np.ones(1, dtype=np.int64)
    return replace(instance(jobs, 9, 1000, periods), token_budget=budget * one, chunk_tokens=chunk * one)


def test_a_prompt_in_chunks_delays_what_follows_and_takes_the_budget() -> None:
    # a prompt of 7 in chunks of 3: two periods before the one that makes the first of 3 tokens
    slots, tokens, budget = column(mixed([(0, 7, 3, 1.0)], 4, 3, 7), 0, 1)
    assert slots.tolist() == [0, 1, 1, 1, 1, 1, 0]
    assert tokens.tolist() == [0, 3, 6, 8, 9, 10, 0]
    assert budget.tolist() == [0, 3, 3, 1, 1, 1, 0]


@pytest.mark.parametrize(("budget", "best"), [(8, 2.0), (7, 1.0)])
def test_the_token_budget_alone_can_bind(budget: int, best: float) -> None:
    # two prompts of 4 in the only period there is
    solved = solve_integer(mixed([(0, 4, 1, 1.0)] * 2, budget, 4, 1))
    assert solved.value == pytest.approx(best)
    assert is_feasible(mixed([(0, 4, 1, 1.0)] * 2, budget, 4, 1), solved.starts)


def test_who_decodes_takes_one_token_of_the_budget() -> None:
    # a prompt of 4 fits a budget of 4 alone, and beside somebody who decodes one of 5
    for budget, best in ((4, 1.0), (5, 2.0)):
        jobs = [(0, 1, 3, 1.0), (1, 4, 1, 1.0)]
        small = replace(mixed(jobs, budget, 4, 3), reward=instance(jobs, 9, 9, 3).reward)
        small.reward[1, 0, 2] = 0.0  # it must start in period 1, while the first decodes
        assert solve_integer(small).value == pytest.approx(best)


def test_token_prices_close_the_gap_and_fall_on_the_longer_prompt() -> None:
    # 12 tokens in 3 periods; prompts of 4 and of 8, both worth 1: 2 of the three short ones pay for the long one
    small = mixed([(0, 8, 1, 1.0), (0, 4, 1, 1.0), (0, 4, 1, 1.0)], 4, 4, 3)
    solved = solve_lp(small)
    assert solved.value == pytest.approx(2.5)
    assert solved.slot_price.max() == solved.kv_price.max() == 0.0
    assert solved.token_price.max() > 0.0
    assert dual_value(small, solved.slot_price, solved.kv_price, solved.token_price) == pytest.approx(2.5)
    assert dual_value(small, solved.slot_price, solved.kv_price) == pytest.approx(3.0)  # without: all three


def test_fractions_beat_whole_requests() -> None:
    # One slot, 4 periods, jobs of 2 and 3 periods. The longer holds periods 1 and 2 wherever it starts, so it
    # shares each with one of the two halves of the shorter: half a longer one and a whole shorter one.
    solved = solve_lp(instance([(0, 0, 2, 3.0), (0, 0, 3, 3.0)], 1, 100, 4))
    assert solved.value == pytest.approx(4.5)
    assert solve_integer(instance([(0, 0, 2, 3.0), (0, 0, 3, 3.0)], 1, 100, 4)).value == pytest.approx(3.0)


@pytest.mark.parametrize(("prompt", "best"), [(0, 2.0), (1, 1.0)])
def test_kv_alone_can_bind(prompt: int, best: float) -> None:
    # capacity 10, five periods: peaks 5 and 5 fit together, peaks 6 and 6 do not
    jobs = [(0, prompt, 5, 1.0)] * 2
    assert solve_integer(instance(jobs, 4, 10, 5)).value == pytest.approx(best)


def test_peaks_that_never_coincide_fit_together() -> None:
    solved = solve_integer(instance([(0, 5, 2, 1.0), (0, 0, 8, 1.0)], 4, 10, 8))
    assert solved.value == pytest.approx(2.0)
    assert is_feasible(instance([(0, 5, 2, 1.0), (0, 0, 8, 1.0)], 4, 10, 8), solved.starts)


def test_prices_of_the_optimum_close_the_gap() -> None:
    small = instance([(0, 2, 3, 2.0), (1, 0, 4, 1.0), (0, 4, 2, 1.5)], 1, 8, 6, devices=2)
    solved = solve_lp(small)
    assert dual_value(small, solved.slot_price, solved.kv_price) == pytest.approx(solved.value)
    assert is_feasible(small, solved.starts)


def test_slack_rows_are_free() -> None:
    solved = solve_lp(instance([(0, 0, 3, 1.0)], 2, 100, 5))
    assert solved.slot_price.max() == 0.0
    assert solved.kv_price.max() == 0.0


def test_nothing_that_fits_the_horizon_is_worth_nothing() -> None:
    late = instance([(3, 0, 4, 1.0)], 1, 10, 5)
    assert solve_lp(late).value == 0.0
    assert solve_integer(late).starts.sum() == 0.0


def test_feasibility_names_what_is_not_a_schedule() -> None:
    small = instance([(1, 0, 2, 1.0), (0, 0, 2, 1.0)], 1, 10, 3)
    starts = np.zeros((2, 1, 3))
    starts[:, 0, 1] = 1.0
    assert not is_feasible(small, starts)  # two in one slot
    starts[:] = 0.0
    starts[0, 0, 0] = 1.0
    assert not is_feasible(small, starts)  # before its arrival


@pytest.mark.parametrize(
    "change",
    [
        {"reward": np.zeros((1, 2, 3))},
        {"prompt_tokens": np.zeros(2, dtype=np.int64)},
        {"output_tokens": np.zeros(1, dtype=np.int64)},
        {"kv_tokens": np.zeros(1, dtype=np.int64)},
        {"token_budget": np.ones(1, dtype=np.int64)},
        {"chunk_tokens": np.ones(1, dtype=np.int64)},
        {"token_budget": np.ones(1, dtype=np.int64), "chunk_tokens": np.zeros(1, dtype=np.int64)},
        {"token_budget": np.ones(2, dtype=np.int64), "chunk_tokens": np.ones(2, dtype=np.int64)},
    ],
)
def test_bad_instances_are_refused(change: dict[str, np.ndarray]) -> None:
    given = {
        "arrival_period": np.zeros(1, dtype=np.int64),
        "prompt_tokens": np.zeros(1, dtype=np.int64),
        "output_tokens": np.ones(1, dtype=np.int64),
        "reward": np.zeros((1, 1, 3)),
        "batch_slots": np.ones(1, dtype=np.int64),
        "kv_tokens": np.ones(1, dtype=np.int64),
    }
    with pytest.raises(ConfigError, match="exact LP"):
        Instance(**(given | change))


def test_negative_prices_are_refused() -> None:
    small = instance([(0, 0, 1, 1.0)], 1, 10, 2)
    with pytest.raises(ConfigError, match="negative"):
        dual_value(small, np.full((1, 2), -1.0), np.zeros((1, 2)))


def test_without_highspy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ConfigError, match=r"bidroute\[exact\]"):
        solve_lp(instance([(0, 0, 1, 1.0)], 1, 10, 2))


def test_solving_prints_nothing() -> None:
    code = (
        "import numpy as np; from bidroute.pricing.exact_lp import Instance, solve_lp; one = np.ones(1, dtype=int); "
        "[print(solve_lp(Instance(0 * one, one, one, np.ones((1, 1, 2)), one, 9 * one)).value) for _ in range(2)]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1.0\n1.0\n", "")
