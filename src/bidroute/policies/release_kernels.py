"""The compiled bid-price decision: rank the waiting requests, release down the order, count why the rest is held.

Shapes: G devices in the fleet, D of them offered, n waiting requests.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import (
    EXACT_TOKENS,
    LENGTH_CLASS,
    PROMPT_TOKENS,
    SEQUENCE,
    SKIPS,
    BoolArray,
    FloatArray,
    IntArray,
    QueueColumns,
)
from bidroute.policies.admission_kernels import (
    BEHIND,
    CAPACITY,
    FREE,
    HELD,
    KV_FUTURE,
    KV_NOW,
    LEASES,
    NO_SLOT,
    NO_TOKENS,
    RELEASED,
    TOKENS,
    View,
    add,
    gaps_between_ends,
    judge,
    startable,
)
from bidroute.policies.alternatives_kernels import Choice
from bidroute.policies.bid_kernels import Terms, fill_bids, rank_by_best_device
from bidroute.pricing.cost_kernels import Prices, Tables, tabulate

PRICED_OUT, FOR_LATER = BEHIND + 1, BEHIND + 2  # more reasons to hold, after the verdicts
REASONS = FOR_LATER + 1
UNTRIED = -1  # not a verdict yet
NOBODY = -1
ENDLESS = 1 << 62
MOST_REFUSALS = 32  # a request that so many of the devices it ranks best on have refused is held
FULLER_TILT = 0.02  # of a bid's value, lost for each resource of the device that is full; parts equals


class Limits(NamedTuple):
    """Where more than `pairs` (request, device) pairs exist, requests rank by their bids for the roomiest devices;
    `spare` more of them are tried than there are free slots. Idle prices are multiplied by `idle_cut`."""

    pairs: int
    spare: int
    idle_cut: float


class Ranking(NamedTuple):
    """Bids of everybody, float64[k, n], for the k devices at the positions `on` int64[k]; over these devices, of
    each request the best `ratio` float64[n] and whether it pays for any, `worth` bool[n]."""

    on: IntArray
    rewards: FloatArray
    values: FloatArray
    ratios: FloatArray
    ratio: FloatArray
    worth: BoolArray


@kernel
def rank(terms: Terms, waiting: QueueColumns, tables: Tables, later_s: FloatArray, on: IntArray) -> Ranking:
    """The bids of all that wait for the devices at these positions, [k]."""
    n = waiting.n
    rewards, values, ratios = np.empty((len(on), n)), np.empty((len(on), n)), np.empty((len(on), n))
    fill_bids(terms, waiting, tables, on, np.arange(n), later_s, rewards, values, ratios)
    ratio, worth = ratios[0].copy(), values[0] > 0.0
    if len(on) == 1:
        return Ranking(on, rewards, values, ratios, ratio, worth)
    rank_by_best_device(rewards, values, ratios)
    ratio[:] = -np.inf
    for k in range(len(on)):
        for row in range(n):
            ratio[row] = max(ratio[row], ratios[k, row])
            worth[row] |= values[k, row] > 0.0
    return Ranking(on, rewards, values, ratios, ratio, worth)


@kernel
def _ranks_before(ratio: FloatArray, sequence: IntArray, one: int, other: int) -> bool:
    return bool(ratio[one] > ratio[other] or (ratio[one] == ratio[other] and sequence[one] < sequence[other]))


@kernel
def _best_of(ratio: FloatArray, sequence: IntArray, low: int, high: int) -> int:
    """The one of the rows `low` … `high`−1 that ranks before the others, or NOBODY; NaN marks those that are gone."""
    best, most = NOBODY, -np.inf
    for row in range(low, high):
        if ratio[row] > most or (ratio[row] == most and (best == NOBODY or sequence[row] < sequence[best])):
            best, most = row, ratio[row]
    return best


@kernel
def _crown(
    ratio: FloatArray, sequence: IntArray, k: int, size: int, best: IntArray, top: FloatArray, entered: IntArray
) -> None:
    """Find the `best` [groups] row of the k-th group of rows, [n], with its ratio (NaN: nobody is left) and its place
    in the queue."""
    best[k] = _best_of(ratio, sequence, k * size, min((k + 1) * size, len(ratio)))
    top[k], entered[k] = (ratio[best[k]], sequence[best[k]]) if best[k] != NOBODY else (np.nan, 0)


@kernel
def best_first(ratio: FloatArray, sequence: IntArray, keep: int) -> IntArray:
    """Rows of the `keep` largest of `ratio` [n], largest first; equal ones by their place in the queue.

    A tournament of √n groups: each next one costs a look at the best of every group and at the rest of its own.
    """
    left, size = ratio.copy(), int(math.sqrt(len(ratio))) + 1
    groups = (len(ratio) + size - 1) // size
    best, top, entered = np.empty(groups, dtype=np.int64), np.empty(groups), np.empty(groups, dtype=np.int64)
    for k in range(groups):
        _crown(left, sequence, k, size, best, top, entered)
    order = np.empty(keep, dtype=np.int64)
    for place in range(keep):
        k = _best_of(top, entered, 0, groups)
        order[place], left[best[k]] = best[k], np.nan
        _crown(left, sequence, k, size, best, top, entered)
    return order


@kernel
def _roomiest(numbers: IntArray, count: int) -> IntArray:
    """Positions of the `count` devices with most KV free, [count]; all of them, in order, where there are no more."""
    if count >= len(numbers):
        return np.arange(len(numbers))
    return np.argsort(numbers[:, HELD] - numbers[:, CAPACITY])[:count]


@kernel
def _fullness(numbers: IntArray, d: int) -> float:
    """How full a device is by slots and by KV, 0 … 2."""
    slots = max(numbers[d, FREE] + numbers[d, LEASES], 1)
    return float(numbers[d, LEASES] / slots + numbers[d, HELD] / max(numbers[d, CAPACITY], 1))


@kernel
def _tokens(terms: Terms, waiting: QueueColumns, row: int) -> float:
    """The output tokens that a request makes, or is expected to make."""
    exact = waiting.ints[EXACT_TOKENS, row]
    return float(exact) if exact > 0 else float(terms.class_tokens[waiting.ints[LENGTH_CLASS, row]])


@kernel
def _ends_needed(numbers: IntArray, d: int, answer: int, kv_tokens: float) -> float:
    """How many requests must end on a device before it has room for one whose KV grows to `kv_tokens`.

    One, where slots or the order kept it out; else as many as hold that much, at the batch's mean.
    """
    if answer != KV_NOW and answer != KV_FUTURE:
        return 1.0
    return float(max(kv_tokens * numbers[d, LEASES] / max(numbers[d, HELD], 1), 1.0))


@kernel
def _walk(
    terms: Terms,
    waiting: QueueColumns,
    tables: Tables,
    view: View,
    bids: Ranking,
    choice: Choice,
    order: IntArray,
    chosen: IntArray,
    verdicts: IntArray,
    turned_down: BoolArray,
) -> None:
    """Each row of `order` takes the device and the start at which it is worth most, of those that it pays for.

    A device that has no room for it may be worth more when it has some again than another one now: then it is held for
    that, and those that rank after it wait for more requests to end. Fills `verdicts` [n] and
    `chosen` [n] (the position of the device; D where it is held for room to come) by row, and sets `turned_down` [D]
    where one was refused that is still held. When the best one that is held has been passed over `max_skips` times, the
    devices on which it is worth its price are kept for it.
    """
    ints, numbers, fleet = waiting.ints, view.numbers, len(view.numbers)
    rewards, values, ratios, column, row_bids = bids.rewards, bids.values, bids.ratios, 0, np.empty((3, fleet, 1))
    score, pays, has_room = np.empty(fleet), np.empty(fleet, dtype=np.bool_), np.empty(fleet, dtype=np.bool_)
    kept, kept_by_best = np.zeros(fleet, dtype=np.bool_), np.zeros(fleet, dtype=np.bool_)
    # The shortest prompt that was not safe, by device and class: batches only fill up, so a longer one is not either.
    unsafe_prompt = np.full((fleet, view.residual.shape[0]), ENDLESS)
    gap_s = gaps_between_ends(view, terms.period_s)
    ahead, ends = np.zeros(fleet), np.ones(fleet)  # ends that others wait for already, and that this one needs
    slots, best, passed = numbers[:, FREE].sum(), NOBODY, 0
    for k in range(len(order)):
        row = order[k]
        prompt, length_class, length = ints[PROMPT_TOKENS, row], ints[LENGTH_CLASS, row], ints[EXACT_TOKENS, row]
        if slots <= 0:
            break
        if len(bids.on) == fleet:
            column = row
        else:
            rewards, values, ratios = row_bids[0], row_bids[1], row_bids[2]
            fill_bids(
                terms, waiting, tables, np.arange(fleet), order[k : k + 1], choice.later_s, rewards, values, ratios
            )
        untried = 0
        for d in range(fleet):
            pays[d], score[d] = values[d, column] > 0.0 and ratios[d, column] > -np.inf, -np.inf
            has_room[d] = True
            if pays[d]:
                bids.worth[row] = True
                score[d] = values[d, column] / (1.0 + FULLER_TILT * _fullness(numbers, d))
                untried += 1
        verdict, refusals, waits = UNTRIED, 0, False
        while untried > 0 and refusals < MOST_REFUSALS and verdict != RELEASED:
            d = int(np.argmax(score))
            if not has_room[d]:  # its room to come is worth more than what is left to try
                ahead[d] += ends[d]
                waits = True
                break
            score[d] = -np.inf
            untried -= 1
            answer = BEHIND if kept[d] else startable(numbers, d, prompt, length)
            if answer == RELEASED and length == 0 and unsafe_prompt[d, length_class] <= prompt:
                answer = KV_FUTURE
            elif answer == RELEASED:
                answer = judge(view, d, prompt, length_class, length)
                if answer == KV_FUTURE and length == 0:
                    unsafe_prompt[d, length_class] = prompt
            if answer == RELEASED:
                add(view, d, prompt, length_class, length)
            chosen[row], verdict = d, answer if answer == RELEASED else max(verdict, answer)
            refusals += answer > NO_TOKENS
            if answer != RELEASED and gap_s[d] < np.inf:
                tokens, reward, g = _tokens(terms, waiting, row), rewards[d, column], choice.devices[d]
                ends[d] = _ends_needed(numbers, d, answer, prompt + tokens)
                # The reward decays with the start as it does with the pace (`fill_bids`). Whoever waits delays also all
                # those that rank after it, by the ends that it takes: that is part of what waiting costs.
                full_s = terms.threshold_s + tokens * (terms.pace_s[g] - terms.least_pace_s) + choice.later_s[d]
                decay = full_s / (full_s + gap_s[d] * (ahead[d] + ends[d] * (waiting.n - k)))
                later = values[d, column] - reward * (1.0 - decay)
                has_room[d], score[d] = False, later / (1.0 + FULLER_TILT * _fullness(numbers, d))
        verdicts[row] = verdict
        if verdict == RELEASED:
            slots -= 1
            passed += best != NOBODY and chosen[row] < choice.offered
        elif verdict != UNTRIED:
            turned_down |= pays
            if best == NOBODY and verdict > NO_TOKENS:
                best, kept_by_best = row, pays.copy()
        if waits:
            verdicts[row], chosen[row] = RELEASED, fleet
        if best != NOBODY and ints[SKIPS, best] + passed >= view.max_skips:
            kept = kept_by_best
    if best != NOBODY:
        ints[SKIPS, best] += passed


@kernel
def _fill_empty(
    waiting: QueueColumns, view: View, ratio: FloatArray, d: int, chosen: IntArray, verdicts: IntArray
) -> int:
    """The device at position d, which is empty, takes the best that can start there, whatever its price; which one."""
    ints, numbers, best = waiting.ints, view.numbers, NOBODY
    for row in range(waiting.n):
        if verdicts[row] == RELEASED:
            continue
        if best != NOBODY and not _ranks_before(ratio, ints[SEQUENCE], row, best):
            continue
        if startable(numbers, d, ints[PROMPT_TOKENS, row], ints[EXACT_TOKENS, row]) == RELEASED:
            best = row
    if best != NOBODY:
        add(view, d, ints[PROMPT_TOKENS, best], ints[LENGTH_CLASS, best], ints[EXACT_TOKENS, best])
        verdicts[best], chosen[best] = RELEASED, d
    return best


@kernel
def _cut_idle_prices(
    prices: Prices, bids: Ranking, numbers: IntArray, choice: Choice, turned_down: BoolArray, factor: float
) -> None:
    """Complementary slackness: the price of room that somebody found too dear, and nobody paid for, is cut.

    The subgradient steps find that out too, but slowly, and meanwhile capacity would stand idle before a queue held
    by its price.
    """
    for k in range(len(bids.on)):
        d = bids.on[k]
        has_room = d < choice.offered and numbers[d, FREE] > 0 and numbers[d, TOKENS] > 0
        if has_room and not turned_down[d] and (bids.values[k] <= 0.0).any():
            prices.slot_price[choice.devices[d]] *= factor
            prices.kv_price[choice.devices[d]] *= factor
            prices.token_price[choice.devices[d]] *= factor


@kernel
def _count_held(worth: BoolArray, verdicts: IntArray, slots_left: int, held: IntArray) -> None:
    """Add those held to `held`, by reason. Those never tried were held by the slots, if they are gone, or the order."""
    for row in range(len(verdicts)):
        verdict = verdicts[row]
        if verdict == UNTRIED:
            verdict = NO_SLOT if slots_left <= 0 else BEHIND
        if not worth[row] and verdict != RELEASED:
            verdict = PRICED_OUT
        held[verdict] += 1
    held[RELEASED] = 0


@kernel
def release(
    terms: Terms,
    waiting: QueueColumns,
    prices: Prices,
    view: View,
    limits: Limits,
    choice: Choice,
    chosen: IntArray,
    held: IntArray,
) -> IntArray:
    """Release what is worth its price and may start, best reward per price first.

    Returns the rows [k] that take a device, in order, and fills its position in `chosen` [≥n] (undefined elsewhere):
    those with one of the first `offered` start now, the others are held for a device that is not offered yet, or (D)
    for room to come. The devices are in the order of the view.

    Requests rank by the ratio on their best device. Each goes to the device that it is worth most on, of those that it
    pays for and that take it; it is held for one that is not offered yet, or has no room yet, where that is worth
    more. Then every device that is still empty takes the best that can start there, whatever its price: else nothing
    might progress. Counts those held by reason in `held` [REASONS]. The prices of devices whose room is found to be too
    dear are cut, and those of all of them when nobody is left waiting.
    """
    n, fleet, numbers = waiting.n, len(choice.devices), view.numbers
    slots = numbers[:, FREE].sum()
    held[:] = 0
    if slots <= 0:
        held[NO_SLOT] = n
        return np.empty(0, dtype=np.int64)
    tables = tabulate(prices, choice.devices)
    bids = rank(terms, waiting, tables, choice.later_s, _roomiest(numbers, max(limits.pairs // n, 1)))
    order = best_first(bids.ratio, waiting.ints[SEQUENCE], min(n, slots + limits.spare))
    verdicts, turned_down = np.full(n, UNTRIED), np.zeros(fleet, dtype=np.bool_)
    _walk(terms, waiting, tables, view, bids, choice, order, chosen, verdicts, turned_down)
    released: IntArray = order[verdicts[order] == RELEASED]
    for d in range(fleet):
        if numbers[d, LEASES] == 0:
            row = _fill_empty(waiting, view, bids.ratio, d, chosen, verdicts)
            if row != NOBODY:
                released = np.append(released, row)
    _count_held(bids.worth, verdicts, slots - np.count_nonzero(chosen[released] < fleet), held)
    if len(released) < n:
        _cut_idle_prices(prices, bids, numbers, choice, turned_down, limits.idle_cut)
    else:  # nobody is left who could find anything scarce
        for g in choice.devices[: choice.offered]:
            prices.slot_price[g] *= limits.idle_cut
            prices.kv_price[g] *= limits.idle_cut
            prices.token_price[g] *= limits.idle_cut
    held[FOR_LATER] = np.count_nonzero(chosen[released] >= choice.offered)
    return released
