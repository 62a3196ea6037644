"""How many tokens a prompt is believed to have."""

from __future__ import annotations

import numpy as np
import pytest

from bidroute.router.calibration import FEW_REQUESTS, TOLD_CAUTION, PromptFlow, PromptTokens
from bidroute.router.tickets import Failure, Job
from bidroute.router.waiting_room import READMITTED
from tests.router.bench import Bench


def test_what_is_not_known_counts_as_much_as_it_can_be() -> None:
    assert PromptTokens().estimate("m", 300) == 300
    assert PromptTokens().estimate("m", 0) == 1


def test_a_worker_that_tells_is_believed_until_there_is_usage() -> None:
    rates = PromptTokens()
    rates.told({"m", "n"}, 0.2)
    assert rates.estimate("m", 1000) == round(200 * TOLD_CAUTION)
    rates.told({"m"}, 0.1)  # of two workers that tell different rates, the higher counts
    assert rates.estimate("m", 1000) == round(200 * TOLD_CAUTION)
    for _ in range(50):
        rates.observe("m", 1000, 500)
    assert rates.estimate("m", 1000) == pytest.approx(500, rel=0.03)
    rates.told({"m"}, 0.9)
    assert rates.estimate("m", 1000) == pytest.approx(500, rel=0.03)
    assert rates.estimate("n", 1000) == round(200 * TOLD_CAUTION)


def test_few_usage_figures_take_the_caution_away() -> None:
    rates = PromptTokens()
    for _ in range(5):
        rates.observe("m", 400, 100)
    assert rates.estimate("m", 400) < 170


def test_a_rate_has_moved_once_however_often_it_is_asked() -> None:
    rates = PromptTokens()
    assert not rates.moved("m")
    rates.told({"m"}, 0.25)
    assert rates.moved("m")
    assert not rates.moved("m")
    rates.observe("m", 100, 30)
    assert not rates.moved("m")


def flow(rates: PromptTokens, size: int = 2000) -> PromptFlow:
    """One whose counter stood at 7 before two texts were sent."""
    prompts = PromptFlow()
    prompts.counted(7, False, rates)
    prompts.sent("m", size, None)
    prompts.sent("m", size, None)
    return prompts


def test_a_counter_bounds_the_rate_from_below_at_once() -> None:
    rates = PromptTokens()
    rates.told({"m"}, 0.2)
    prompts = flow(rates)
    assert prompts.counted(7 + 2000, False, rates) == {"m"}  # one of them, or part of both
    assert rates.estimate("m", 1000) == 500


def test_a_counter_that_others_move_too_does_not() -> None:
    rates = PromptTokens()
    rates.told({"m"}, 0.2)
    flow(rates).counted(7 + 2000, True, rates)
    assert rates.estimate("m", 1000) == 250


def test_a_counter_bounds_the_rate_from_above_once_prompts_are_processed_for_certain() -> None:
    rates = PromptTokens()
    prompts = flow(rates)
    prompts.processed(2000, None)
    prompts.counted(7 + 600, False, rates)
    assert rates.estimate("m", 1000) == 1000  # the page may be older than the news of that
    prompts.counted(7 + 700, False, rates)
    assert rates.estimate("m", 1000) == 350
    prompts.processed(2000, None)
    for _ in range(2):
        prompts.counted(7 + 700, False, rates)
    assert rates.estimate("m", 1000) == 250  # cache hits may be missing: not below four bytes a token


def test_tokens_of_prompts_with_ids_are_known() -> None:
    rates = PromptTokens()
    rates.told({"m"}, 0.2)
    prompts = flow(rates)
    prompts.sent("m", 0, 500)
    prompts.counted(7 + 500 + 1600, False, rates)
    assert rates.estimate("m", 1000) == 400


def test_a_counter_says_nothing_against_usage_or_after_a_restart_or_of_little() -> None:
    rates = PromptTokens()
    for _ in range(FEW_REQUESTS):
        rates.observe("m", 4000, 1000)
    before = rates.estimate("m", 1000)
    prompts = flow(rates)
    prompts.counted(7 + 4000, False, rates)
    assert rates.estimate("m", 1000) == before
    cold = PromptTokens()
    cold.told({"m"}, 0.2)
    again = flow(cold)
    assert again.counted(3, False, cold) == set()
    flow(cold, size=90).counted(7 + 170, False, cold)
    assert cold.estimate("m", 1000) == 250


# --- in the router --------------------------------------------------------------------------------------------------


def held(bench: Bench) -> list[int]:
    """Prompt tokens of the open leases, and of those in the queue; the fleet's totals must agree with the leases."""
    state = bench.dispatcher.controller.state
    prompts = state.fleet.ledgers[0].prompt_tokens.tolist()
    decoded = state.fleet.ledgers[0].decoded_tokens.sum()
    assert state.fleet.kv_tokens_used[0] == sum(prompts) + decoded + len(prompts)
    waiting = state.queue.prompt_tokens.tolist()
    assert waiting == [state.queue.request(i).prompt_tokens for i in state.queue.ids.tolist()]
    return prompts + waiting


async def test_who_waits_and_who_runs_is_estimated_anew_when_the_calibration_moves(make) -> None:
    bench = make()
    bench.worker("a", slots=2, kv_tokens=100_000)
    tickets = [bench.dispatcher.submit(Job("m", 400)) for _ in range(4)]
    exact, other = bench.dispatcher.submit(Job("m", 9, prompt_tokens=33)), bench.dispatcher.submit(Job("x", 400))
    await bench.settle()
    assert sorted(held(bench)) == [33, 100, 100, 100, 100, 400]
    running = next(ticket for ticket in tickets if ticket.worker)
    bench.dispatcher.started(running)
    bench.dispatcher.finished(running, 400, 5)
    await bench.settle()
    rate = bench.dispatcher.estimates.rates.estimate("m", 400)
    assert rate > 130
    assert sorted(held(bench)) == sorted([33, 400] + [rate] * 3)
    for ticket in (*tickets, exact, other):
        bench.dispatcher.cancelled(ticket)
    assert held(bench) == []


async def test_what_fits_no_worker_any_more_is_held_to_the_largest_and_a_retry_is_estimated_anew_too(make) -> None:
    bench = make()
    bench.worker("a", slots=1, kv_tokens=1000), bench.worker("b", slots=1, kv_tokens=1000)
    failed, running = bench.dispatcher.submit(Job("m", 400)), bench.dispatcher.submit(Job("m", 400))
    await bench.settle()
    long = bench.dispatcher.submit(Job("m", 3200))
    bench.dispatcher.failed(failed, Failure.FAULT)
    bench.dispatcher.retry(failed)
    bench.dispatcher.estimates.told({"m"}, 0.5)
    assert (long.prompt_tokens, failed.prompt_tokens, running.prompt_tokens) == (999, 250, 250)
    bench.dispatcher.finished(running, 100, 1)
    assert await bench.where(long) is not None
    assert await bench.where(failed) is not None


async def test_a_long_queue_is_estimated_anew_by_parts(make) -> None:
    bench = make()
    bench.worker("a", slots=1)
    tickets = [bench.dispatcher.submit(Job("m", 400)) for _ in range(READMITTED + 50)]
    await bench.settle()
    bench.dispatcher.estimates.told({"m"}, 0.4)
    assert {ticket.prompt_tokens for ticket in tickets} == {100, 200}
    bench.dispatcher._tick()
    assert {ticket.prompt_tokens for ticket in tickets} == {200}
    for ticket in tickets:
        bench.dispatcher.cancelled(ticket)


def test_prompts_that_differ_count_with_their_usual_error() -> None:
    rates, random = PromptTokens(), np.random.default_rng(0)
    for size in random.integers(500, 1500, 400).tolist():
        rates.observe("m", size, round(size * 0.25 * random.normal(1.0, 0.1)))
    assert rates.estimate("m", 4000) == pytest.approx(1000 * 1.1, rel=0.03)
    for _ in range(2000):
        rates.observe("m", 1000, 250)
    assert rates.estimate("m", 4000) == pytest.approx(1000, abs=2)
