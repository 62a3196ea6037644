"""Compiled admission check: which of an ordered set of waiting requests may start on which device.

Two forecasts of a device's KV exist. Where the output lengths of its whole batch are known for certain (and the
candidate's too), the load just before each completion is exact: between completions the load only grows, so these
are all its peaks. Else each request holds m(θ+h) tokens with probability S(θ+h)/S(θ), independently, on a grid of
distances h. Both are built only when the first candidate asks, and adding a candidate updates them in place.

On a device with a token budget a prompt may take several periods, and the request ends as many later. Both forecasts
then count it as one that grows from now on and lives longer by that delay: at every moment, and however much shorter
the delay turns out, no less than it will hold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.ledger_kernels import rest_of_prompt
from bidroute.core.queue import FloatArray, IntArray

# Verdicts, ordered by how far a request got: the verdict over several devices is the largest. Up to NO_TOKENS it is the
# device that has no room, for anybody.
NEVER_HERE, NO_SLOT, NO_TOKENS, KV_NOW, KV_FUTURE, RELEASED = 0, 1, 2, 3, 4, 5
BEHIND = 6  # not tried: one before it in the order reserves the devices

# Columns of `numbers`: a device's index, capacity in whole blocks, block size, free slots, tokens held now in blocks,
# open leases, whether all their lengths are known, the forecast built (MODE), where the last candidate failed, the
# token budget of an iteration (0: none), and what decoding and the prompts released before leave of the next one's.
DEVICE, CAPACITY, BLOCK, FREE, HELD, LEASES, KNOWN, MODE, HOT, BUDGET, TOKENS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
NUMBERS = 11
UNLIMITED = 1 << 62  # TOKENS without a budget
LEAST_CHUNK = 0.25  # of the budget, that is taken to be left for prompts however many slots there are
UNBUILT, EXACT, GRID = 0, 1, 2  # values of MODE
DECODING = 2  # `LeaseState.DECODING`
MEAN, VARIANCE = 0, 1  # of the KV tokens, per grid point: rows of `grids`
LEFT, SIZE, LOAD = 0, 1, 2  # rows of `peaks`: periods left (rising), KV tokens now, the batch's KV tokens at left − 1


class View(NamedTuple):
    """All that one decision's checks need.

    Lease pool: `columns` int64[7, rows], `offset` and `counts` int64[G]. Residual survival on a grid of H distances:
    `distance` int64[H], `growth` float64[H] (who is alive at `distance[b]` counts with its size at `growth[b]`),
    `residual` float64[classes, A, H] = S(age+distance)/S(age), `residual_tokens` float64[classes, A] the sum of that
    over all distances, `age_index` int64[horizon+1] (the row of each age).
    Devices of the decision: `numbers` int64[D, NUMBERS], `grids` float64[2, D, H], `peaks` int64[3, D, W].
    The rule: `safety` (look ahead as well), `risk` = z², `max_skips` (how many may be taken past the best).
    """

    columns: IntArray
    offset: IntArray
    counts: IntArray
    distance: IntArray
    growth: FloatArray
    residual: FloatArray
    residual_tokens: FloatArray
    age_index: IntArray
    numbers: IntArray
    grids: FloatArray
    peaks: IntArray
    safety: bool
    risk: float
    max_skips: int


@kernel
def in_blocks(tokens: int, block: int) -> int:
    """Tokens rounded up to whole blocks."""
    if block & (block - 1) == 0:
        return (tokens + block - 1) & -block
    return (tokens + block - 1) // block * block


@kernel
def fill_residuals(
    survival: FloatArray, classes: IntArray, distance: IntArray, residual: FloatArray, residual_tokens: FloatArray
) -> None:
    """residual[c, a, b] = S(distance[a] + distance[b]) / S(distance[a]) of `classes`; nobody outlives the horizon.

    `residual_tokens` [c, a] is its sum over all distances, by trapezoids between those of the grid: the tokens that a
    request is expected to make yet, 1 at least.
    """
    last = survival.shape[1] - 1
    for c in classes:
        for a in range(len(distance)):
            now = survival[c, distance[a]]
            residual[c, a, 0] = 1.0
            for b in range(1, len(distance)):
                at = distance[a] + distance[b]
                residual[c, a, b] = survival[c, at] / now if at <= last and now > 0.0 else 0.0
            tokens = 0.5
            for b in range(1, len(distance)):
                step = distance[b] - distance[b - 1]
                tokens += 0.5 * step * (residual[c, a, b] + residual[c, a, b - 1])
            residual_tokens[c, a] = max(tokens, 1.0)


@kernel
def load_batches(
    columns: IntArray, offset: IntArray, counts: IntArray, totals: IntArray, devices: IntArray, numbers: IntArray
) -> int:
    """Fill `numbers` from the lease pool and the fleet's totals; no forecast yet.

    Returns the longest batch that a device could have, in requests.
    """
    width = 1
    for d in range(len(devices)):
        g = devices[d]
        n, slots, block, budget = counts[g], totals[5, g], totals[7, g], totals[9, g]
        held, known, tokens = 0, 1, budget if budget > 0 else UNLIMITED
        for row in range(offset[g], offset[g] + n):
            held += in_blocks(columns[1, row] + columns[2, row] + 1, block)
            if columns[4, row] == 0:
                known = 0
            if budget > 0:
                tokens -= 1 if columns[5, row] == DECODING else rest_of_prompt(columns, row)
        numbers[d, DEVICE], numbers[d, CAPACITY], numbers[d, BLOCK] = g, totals[8, g], block
        numbers[d, FREE], numbers[d, HELD], numbers[d, LEASES] = max(slots - n, 0), held, n
        numbers[d, KNOWN], numbers[d, MODE], numbers[d, HOT] = known, UNBUILT, 0
        numbers[d, BUDGET], numbers[d, TOKENS] = budget, tokens
        width = max(width, slots, n)
    return width


@kernel
def _insert_peak(peaks: IntArray, d: int, n: int, block: int, size: int, left: int) -> None:
    """Add one request to the n there are, keeping them sorted by `LEFT`."""
    place = n
    while place > 0 and peaks[LEFT, d, place - 1] > left:
        for k in range(3):
            peaks[k, d, place] = peaks[k, d, place - 1]
        place -= 1
    peaks[LEFT, d, place], peaks[SIZE, d, place] = left, size
    load = 0
    for j in range(place, n + 1):
        load += in_blocks(peaks[SIZE, d, j] + left - 1, block)
    peaks[LOAD, d, place] = load
    for i in range(place):
        peaks[LOAD, d, i] += in_blocks(size + peaks[LEFT, d, i] - 1, block)


@kernel
def _peaks_safe(numbers: IntArray, peaks: IntArray, d: int, size: int, left: int) -> bool:
    """Whether no peak within the next `left` periods would exceed the capacity with one more request that long."""
    capacity, block, n, hot = numbers[d, CAPACITY], numbers[d, BLOCK], numbers[d, LEASES], numbers[d, HOT]
    if hot < n:
        at = peaks[LEFT, d, hot]
        if at <= left and peaks[LOAD, d, hot] + in_blocks(size + at - 1, block) > capacity:
            return False
    i = 0
    while i < n and peaks[LEFT, d, i] <= left:
        if peaks[LOAD, d, i] + in_blocks(size + peaks[LEFT, d, i] - 1, block) > capacity:
            numbers[d, HOT] = i
            return False
        i += 1
    load = in_blocks(size + left - 1, block)
    for j in range(i, n):
        load += in_blocks(peaks[SIZE, d, j] + left - 1, block)
    return bool(load <= capacity)


@kernel
def _delay(numbers: IntArray, d: int, tokens: int) -> int:
    """The most periods that the budget of device d takes for `tokens` of prompts, while others decode in all slots."""
    if numbers[d, BUDGET] == 0 or tokens <= 0:
        return 0
    slots = numbers[d, FREE] + numbers[d, LEASES]
    chunk = max(numbers[d, BUDGET] - slots, int(LEAST_CHUNK * numbers[d, BUDGET]), 1)
    return int((tokens + chunk - 1) // chunk)


@kernel
def _delay_of_candidate(numbers: IntArray, d: int, prompt: int) -> int:
    """Periods after this one that its prompt takes, at most: those of what this one's budget has no room for."""
    return _delay(numbers, d, prompt - numbers[d, TOKENS])


@kernel
def _delay_of_batch(view: View, d: int) -> int:
    """Periods after this one until all who prefill or wait in the engine are through, at most."""
    if view.numbers[d, BUDGET] == 0:
        return 0
    g, tokens = view.numbers[d, DEVICE], 0
    for row in range(view.offset[g], view.offset[g] + view.counts[g]):
        tokens += rest_of_prompt(view.columns, row)
    return max(_delay(view.numbers, d, tokens) - 1, 0)


@kernel
def _put_on_grid(view: View, d: int, size: int, row: int, length_class: int, left: int, delay: int) -> None:
    """Add one request to mean and variance; one rounded up to blocks wastes half a block on average.

    `left`: the periods it has left where they are known, else 0, and then `row` is its age in `residual` and `delay`
    the periods that it still prefills.
    """
    base = size + 0.5 * (view.numbers[d, BLOCK] - 1)
    distance, growth, mean, variance = view.distance, view.growth, view.grids[MEAN, d], view.grids[VARIANCE, d]
    if left > 0:
        for b in range(len(distance)):
            if distance[b] >= left:
                break
            mean[b] += base + min(growth[b], left - 1)
        return
    residual = view.residual[length_class, row]
    for b in range(len(distance)):
        alive, tokens = residual[_alive_at(view, b, delay)], base + growth[b]
        mean[b] += alive * tokens
        variance[b] += alive * (1.0 - alive) * tokens * tokens


@kernel
def _alive_at(view: View, b: int, delay: int) -> int:
    """The place on the grid of the distance of place b, less a delay."""
    if delay == 0:
        return b
    return int(view.age_index[max(view.distance[b] - delay, 0)])


@kernel
def _grid_safe(view: View, d: int, first: int, last: int, size: int, length_class: int, exact: int, delay: int) -> int:
    """The first of the buckets `first` … `last`−1 with E[KV] + z·sd[KV] > C, or −1; without a square root.

    A bucket in which all would fit if nobody had ended by then is safe whatever the deviation: with few large prompts
    that end soon, but nobody knows when, E + z·sd is more than there can be.
    """
    base, capacity = size + 0.5 * (view.numbers[d, BLOCK] - 1), view.numbers[d, CAPACITY]
    block, running = view.numbers[d, BLOCK], view.numbers[d, LEASES] + 1
    all_now = view.numbers[d, HELD] + in_blocks(size, block) + running * (block - 1)
    for b in range(first, last):
        if exact > 0:
            if view.distance[b] >= exact:
                return -1
            alive, tokens = 1.0, base + min(view.growth[b], exact - 1)
        else:
            alive, tokens = view.residual[length_class, 0, _alive_at(view, b, delay)], base + view.growth[b]
        room = capacity - view.grids[MEAN, d, b] - alive * tokens
        variance = view.grids[VARIANCE, d, b] + alive * (1.0 - alive) * tokens * tokens
        too_risky = room < 0.0 or view.risk * variance > room * room
        if too_risky and all_now + running * view.growth[b] > capacity:
            return b
    return -1


@kernel
def _ensure_forecast(view: View, d: int, exact: int) -> None:
    """Build what a candidate with this exact length (0: unknown) is judged by: peaks, or the grid.

    Once on the grid, always on the grid. It starts from the peaks where they exist, because those include the
    candidates taken since.
    """
    numbers, peaks = view.numbers, view.peaks
    mode, n = numbers[d, MODE], numbers[d, LEASES]
    if mode == GRID or (mode == EXACT and exact > 0):
        return
    target = EXACT if numbers[d, KNOWN] == 1 and exact > 0 else GRID
    if target == GRID:
        for b in range(len(view.distance)):
            view.grids[MEAN, d, b], view.grids[VARIANCE, d, b] = 0.0, 0.0
    start, batch_delay = view.offset[numbers[d, DEVICE]], _delay_of_batch(view, d)
    for i in range(n):
        delay = 0
        if mode == EXACT:
            size, age, length_class, left = peaks[SIZE, d, i], 0, 0, peaks[LEFT, d, i]
        else:
            delay = 0 if view.columns[5, start + i] == DECODING else batch_delay
            age, length_class = view.columns[2, start + i], view.columns[3, start + i]
            left = max(view.columns[4, start + i] - age, 1) + delay if view.columns[4, start + i] > 0 else 0
            size = view.columns[1, start + i] + age + 1
        if target == EXACT:
            _insert_peak(peaks, d, i, numbers[d, BLOCK], size, left)
        else:
            _put_on_grid(view, d, size, view.age_index[min(age, len(view.age_index) - 1)], length_class, left, delay)
    numbers[d, MODE], numbers[d, HOT] = target, 0


@kernel
def _stays_safe(view: View, d: int, prompt: int, length_class: int, exact: int) -> bool:
    """Whether device d stays within its KV with the candidate."""
    _ensure_forecast(view, d, exact)
    delay = _delay_of_candidate(view.numbers, d, prompt)
    exact += delay if exact > 0 else 0
    if view.numbers[d, MODE] == EXACT:
        return _peaks_safe(view.numbers, view.peaks, d, prompt + 1, exact)
    # Where the last candidate failed is where this one most likely fails too.
    first = view.numbers[d, HOT]
    for attempt in range(2):
        low, high = (first, first + 1) if attempt == 0 else (0, len(view.distance))
        failed = _grid_safe(view, d, low, high, prompt + 1, length_class, exact, delay)
        if failed >= 0:
            view.numbers[d, HOT] = failed
            return False
    return True


@kernel
def startable(numbers: IntArray, d: int, prompt: int, exact: int) -> int:
    """The verdict on one candidate for device d, as the batch stands, without a look ahead."""
    block, capacity = numbers[d, BLOCK], numbers[d, CAPACITY]
    if in_blocks(prompt + max(exact, 1), block) > capacity:
        return NEVER_HERE
    if numbers[d, FREE] <= 0:
        return NO_SLOT
    if numbers[d, TOKENS] <= 0:
        return NO_TOKENS
    if numbers[d, HELD] + in_blocks(prompt + 1, block) > capacity:
        return KV_NOW
    return RELEASED


@kernel
def judge(view: View, d: int, prompt: int, length_class: int, exact: int) -> int:
    """The verdict on one candidate for device d, as the batch stands."""
    verdict = startable(view.numbers, d, prompt, exact)
    # An empty device takes whatever can start: it runs alone, and waiting would not make it any safer.
    if verdict < RELEASED or not view.safety or view.numbers[d, LEASES] == 0:
        return verdict
    return RELEASED if _stays_safe(view, d, prompt, length_class, exact) else KV_FUTURE


@kernel
def add(view: View, d: int, prompt: int, length_class: int, exact: int) -> None:
    """The candidate joins device d: take its slot, its KV now, and its part of the forecast."""
    numbers = view.numbers
    if view.safety:
        _ensure_forecast(view, d, exact)
        delay = _delay_of_candidate(numbers, d, prompt)
        left = exact + delay if exact > 0 else 0
        if numbers[d, MODE] == EXACT:
            _insert_peak(view.peaks, d, numbers[d, LEASES], numbers[d, BLOCK], prompt + 1, left)
        else:
            _put_on_grid(view, d, prompt + 1, view.age_index[0], length_class, left, delay)
    numbers[d, HELD] += in_blocks(prompt + 1, numbers[d, BLOCK])
    numbers[d, FREE] -= 1
    numbers[d, LEASES] += 1
    numbers[d, TOKENS] -= max(prompt, 1)


@kernel
def gaps_between_ends(view: View, period_s: FloatArray) -> FloatArray:
    """Expected seconds between two ends of requests on each device, [D]; infinite where nothing runs.

    A request that is expected to make r more tokens ends in the next period with probability 1/r, about. `period_s`
    [G] are the devices' periods.
    """
    columns, offset, counts, numbers = view.columns, view.offset, view.counts, view.numbers
    residual_tokens, age_index = view.residual_tokens, view.age_index
    gap_s = np.empty(len(numbers))
    for d in range(len(numbers)):
        g, ends = numbers[d, DEVICE], 0.0
        for row in range(offset[g], offset[g] + counts[g]):
            age, exact = columns[2, row], columns[4, row]
            if exact > 0:
                ends += 1.0 / max(exact - age, 1)
            else:
                ends += 1.0 / residual_tokens[columns[3, row], age_index[min(age, len(age_index) - 1)]]
        gap_s[d] = period_s[g] / ends if ends > 0.0 else np.inf
    return gap_s
