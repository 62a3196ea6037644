"""Which engines are taken to hang."""

from __future__ import annotations

import pytest

from bidroute.router.progress import LONGEST_GAP_S, Progress, signs_of_life
from bidroute.router.readings import Reading

STANDS = Reading("vllm", generation_tokens_total=5, prompt_tokens_total=9, steps_total=3, running=2, kv_usage=0.1)


def silence(progress: Progress, since_s: float, until_s: float, signs: object = (1,), busy: bool = True) -> float:
    """Look every half second; the silence at the end."""
    now_s = since_s
    while now_s <= until_s:
        silent_s = progress.seen(now_s, signs, busy)  # type: ignore[arg-type]
        now_s += 0.5
    return silent_s


def test_silence_begins_with_work_and_ends_with_any_sign() -> None:
    progress = Progress(10.0)
    assert silence(progress, 0.0, 100.0, busy=False) == 0.0
    assert silence(progress, 100.5, 105.0) == 5.0
    assert not progress.hangs(5.0, 0)
    assert silence(progress, 105.5, 111.0) == 11.0
    assert progress.hangs(11.0, 0)
    assert not progress.hangs(11.0, 2000)
    assert progress.seen(111.5, (2,), True) == 0.0


def test_a_page_without_counters_says_nothing() -> None:
    assert signs_of_life(Reading()) is None
    assert silence(Progress(1.0), 0.0, 50.0, signs=None) == 0.0


@pytest.mark.parametrize(
    "moved",
    [
        Reading("vllm", generation_tokens_total=6, prompt_tokens_total=9, steps_total=3, running=2, kv_usage=0.1),
        Reading("vllm", generation_tokens_total=5, prompt_tokens_total=9, steps_total=3, running=2, kv_usage=0.2),
        Reading("vllm", generation_tokens_total=5, prompt_tokens_total=9, steps_total=3, running=1, kv_usage=0.1),
        Reading("vllm", generation_tokens_total=5, prompt_tokens_total=9, steps_total=4, running=2, kv_usage=0.1),
    ],
)
def test_every_figure_is_a_sign(moved: Reading) -> None:
    assert signs_of_life(STANDS) == signs_of_life(STANDS)
    assert signs_of_life(moved) != signs_of_life(STANDS)


def test_who_goes_on_soon_after_is_given_twice_the_time() -> None:
    progress = Progress(10.0)
    silence(progress, 0.0, 11.0)
    progress.given_up(11.0)
    assert progress.waits
    progress.seen(12.0, (1,), False)  # its requests are gone, and still nothing moves
    assert progress.waits
    progress.seen(18.0, (2,), False)
    assert not progress.waits
    assert progress.patience_s == 20.0
    progress.given_up(100.0)
    progress.seen(500.0, (3,), False)  # this one was dead for good, and has been repaired
    assert (progress.waits, progress.patience_s) == (False, 20.0)


def test_an_absence_of_the_router_is_no_silence() -> None:
    progress = Progress(30.0)
    silence(progress, 0.0, 1.0)
    assert progress.seen(900.0, (1,), True) == 1.0 + LONGEST_GAP_S
