"""`resolve_lp`: when it solves, and that it keeps what the other policies keep."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.objective import Objective
from bidroute.errors import ConfigError
from bidroute.policies import PolicySettings, build_policy
from bidroute.policies import resolve_lp as module
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.policies.resolve_lp import ResolveLp, ResolvingUpdates
from bidroute.pricing.mixed_kernels import chunk_tokens
from bidroute.pricing.prices import ShadowPrices
from bidroute.simulator import RunResult
from tests.invariants.runs import random_jobs, run, same
from tests.invariants.test_mixed import run as run_mixed
from tests.policies.states import state

OBJECTIVE = Objective(throughput=1.0, tail=0.0)
CONGESTED = random_jobs(5, 60, span_s=40, longest=40, prompt=30)


def solved(lengths: str = "oracle", objective: Objective | None = None, shift_s: float = 0.0) -> RunResult:
    jobs = [(arrival_s + shift_s, prompt, output) for arrival_s, prompt, output in CONGESTED]
    policy = ResolveLp(objective or Objective(), 7, every_periods=10.0)
    return run(jobs, 4, 150, devices=2, lengths=lengths, policy=policy)


def test_it_solves_every_so_many_periods_and_steps_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    history, prices = ArrivalHistory(), ShadowPrices()
    for k in range(5):
        history.add(float(k), 7, 0)
    updates, waiting = ResolvingUpdates(prices, history, 0, 10.0), state([Device("d", 2, 1000, period_s=0.5)])
    solutions, steps = [], []
    exact, step = module.exact_prices, prices.step
    monkeypatch.setattr(module, "exact_prices", lambda *args: solutions.append(1) or exact(*args))
    monkeypatch.setattr(prices, "step", lambda *args: steps.append(1) or step(*args))
    for period in range(0, 41, 2):
        updates.run(4.0 + 0.5 * period, waiting, OBJECTIVE, 10.0)
    assert len(solutions) == 5
    assert len(steps) == 16


def test_a_solution_prices_what_is_left_of_the_token_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of devices that take requests, in chunks of what their leases leave of it; without a budget there is no price."""
    history, prices = ArrivalHistory(), ShadowPrices()
    for k in range(20):
        history.add(0.2 * k, 40, 0)
    budgets = [8, 0, 5, 16, 8]
    devices = [Device(f"d{g}", 8, 1000, period_s=0.5, token_budget=budget) for g, budget in enumerate(budgets)]
    decoding = [(0, 30, 4, 0, 0)] * 3 + [(2, 30, 4, 0, 0)] * 7
    loaded = state(devices, [(40, 0, 0)] * 30, decoding, prefilling=[(3, 40, 16, 0, 0)])
    fleet = loaded.fleet
    fleet.drain(4)
    calls = []
    exact = module.exact_prices

    def watched(*args: Any) -> Any:
        calls.append((args[0], exact(*args)))
        return calls[-1][1]

    monkeypatch.setattr(module, "exact_prices", watched)
    ResolvingUpdates(prices, history, 0, 10.0).run(4.0, loaded, OBJECTIVE, 10.0)
    ((given, found),) = calls
    assert given.capacity.tolist() == [[8] * 4, [1000] * 4, budgets[:4]]
    assert given.chunk_tokens.tolist() == [chunk_tokens(budgets[g], int(fleet.open_leases[g])) for g in range(4)]
    assert np.array_equal(given.left[2], prices.tokens_left[:4])
    assert np.array_equal(prices.token_price[:4], found[2])
    assert (prices.token_price.max(axis=1) > 0.0).tolist() == [True, False, True, True, False]


def mixed(lengths: str = "oracle", objective: Objective | None = None, shift_s: float = 0.0) -> RunResult:
    """On devices that prefill, too, prompts in several chunks of their budget."""
    jobs = [(arrival_s + shift_s, prompt, output) for arrival_s, prompt, output in CONGESTED]
    policy = ResolveLp(objective or Objective(), 7, risk_z=0.0, every_periods=10.0)
    return run_mixed(jobs, devices=2, lengths=lengths, policy=policy)


@pytest.mark.parametrize("lengths", ["oracle", "none"])
def test_invariants_1_9_and_10_mixed_everybody_is_served_and_the_same_seed_gives_the_same_run(lengths: str) -> None:
    results = [mixed(lengths) for _ in range(2)]
    assert same(*results)
    assert results[0].held == results[1].held
    assert results[0].finished == len(CONGESTED)
    assert lengths == "none" or results[0].preemptions.sum() == 0


def test_invariants_4_and_5_mixed_neither_the_scale_of_rewards_nor_the_hour_matters() -> None:
    plain = mixed()
    assert same(plain, mixed(objective=Objective().scaled(2.0**20)))
    later = mixed(shift_s=3600.0)
    assert np.array_equal(plain.device, later.device)
    waits_s = [result.start_s - result.arrival_s for result in (plain, later)]
    assert waits_s[0] == pytest.approx(waits_s[1], abs=1e-9)  # iterations with prompts in them end at uneven times


def test_without_an_optimum_it_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "exact_prices", lambda *args: None)
    assert same(solved(), run(CONGESTED, 4, 150, devices=2, policy=ResolveLp(Objective(), 7, every_periods=10.0)))


@pytest.mark.parametrize("lengths", ["oracle", "none"])
def test_invariants_9_and_10_everybody_is_served_and_the_same_seed_gives_the_same_run(lengths: str) -> None:
    results = [solved(lengths) for _ in range(2)]
    assert same(*results)
    assert results[0].held == results[1].held
    assert results[0].finished == len(CONGESTED)


def test_invariants_4_and_5_neither_the_scale_of_rewards_nor_the_hour_matters() -> None:
    plain = solved()
    assert same(plain, solved(objective=Objective().scaled(2.0**20)))
    assert same(plain, solved(objective=Objective().scaled(1000.0)))
    assert same(plain, solved(shift_s=3600.0))


def test_invariant_1_known_lengths_are_never_preempted() -> None:
    result = run(CONGESTED, 4, 100, devices=2, policy=ResolveLp(Objective(), risk_z=0.0, every_periods=5.0))
    assert result.preemptions.sum() == 0
    assert np.isfinite(result.end_s).all()


def test_it_is_built_by_name_with_its_options() -> None:
    policy = build_policy("resolve_lp:every=50:risk_z=1", PolicySettings(objective="ttft"))
    assert policy.name == "resolve_lp"
    with pytest.raises(ConfigError, match="every=0; expected a number of periods above 0"):
        build_policy("resolve_lp:every=0")


def test_without_highspy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ConfigError, match=r"bidroute\[exact\]"):
        build_policy("resolve_lp")
