"""Compiled admission check: which of an ordered set of waiting requests may start on which device.

Two forecasts of a device's KV exist. Where the output lengths of its whole batch are known for certain (and the
candidate's too), the load just before each completion is exact: between completions the load only grows, so these
are all its peaks. Else each request holds m(θ+h) tokens with probability S(θ+h)/S(θ), independently, on a grid of
distances h. Both are built only when the first candidate asks, and adding a candidate updates them in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray

# Verdicts, ordered by how far a request got: the verdict over several devices is the largest.
NEVER_HERE, NO_SLOT, KV_NOW, KV_FUTURE, RELEASED = 0, 1, 2, 3, 4
BEHIND = 5  # not tried: one before it in the order reserves the devices
UNBUILT, EXACT, GRID = 0, 1, 2  # which forecast a device holds


class Tables(NamedTuple):
    """Residual survival, from `ResidualTables`.

    `distance` int64[H], `growth` float64[H]: who is alive at `distance[b]` periods counts with its size at `growth[b]`.
    `residual` float64[classes, A, H] = S(age+distance)/S(age) for the ages `age[a]` (the distances again);
    `age_index` int64[horizon+1] is the row of each age.
    """

    distance: IntArray
    growth: FloatArray
    residual: FloatArray
    age_index: IntArray


class Leases(NamedTuple):
    """The fleet's lease pool: `columns` int64[6, rows], `offset` and `counts` int64[G]."""

    columns: IntArray
    offset: IntArray
    counts: IntArray


class Rule(NamedTuple):
    """`safety`: look ahead as well; `risk` = z², the margin; `max_skips`: later ones taken past the best at most."""

    safety: bool
    risk: float
    max_skips: int


class Batches(NamedTuple):
    """The devices of one decision, shape [D] unless said: capacities, and what their batches will hold.

    `capacity` is in whole blocks; `held_tokens` is held now, in blocks; `leases` counts all open ones; `known` is 1
    while all their lengths are exact; `mode` is the forecast held. GRID: `mean` and `variance` float64[D, H] of the
    KV tokens. EXACT: the first `leases` entries of `remaining` (periods, rising), `size` (KV tokens now) and `load`
    (KV tokens of the batch at remaining − 1), each int64[D, W]. `hot` is where the last candidate failed.
    """

    device: IntArray
    capacity: IntArray
    block: IntArray
    free_slots: IntArray
    held_tokens: IntArray
    leases: IntArray
    known: IntArray
    mode: IntArray
    hot: IntArray
    mean: FloatArray
    variance: FloatArray
    remaining: IntArray
    size: IntArray
    load: IntArray


class View(NamedTuple):
    """All that the checks need, as one value."""

    leases: Leases
    tables: Tables
    batches: Batches
    rule: Rule


@kernel
def view(
    columns: IntArray,
    offset: IntArray,
    counts: IntArray,
    distance: IntArray,
    growth: FloatArray,
    residual: FloatArray,
    age_index: IntArray,
    numbers: IntArray,
    grids: FloatArray,
    exact: IntArray,
    safety: bool,
    risk: float,
    max_skips: int,
) -> View:
    """Name the parts. Entry kernels take plain arrays: Python hands those over three times faster than tuples."""
    batches = Batches(
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        grids[0],
        grids[1],
        exact[0],
        exact[1],
        exact[2],
    )
    tables = Tables(distance, growth, residual, age_index)
    return View(Leases(columns, offset, counts), tables, batches, Rule(safety, risk, max_skips))


@kernel
def in_blocks(tokens: int, block: int) -> int:
    """Tokens rounded up to whole blocks."""
    if block == 1:
        return tokens
    if block & (block - 1) == 0:
        return (tokens + block - 1) & -block
    return (tokens + block - 1) // block * block


@kernel
def fill_residuals(survival: FloatArray, distance: IntArray, residual: FloatArray) -> None:
    """residual[c, a, b] = S(distance[a] + distance[b]) / S(distance[a]); nobody outlives the horizon."""
    classes, last = survival.shape[0], survival.shape[1] - 1
    for c in range(classes):
        for a in range(len(distance)):
            now = survival[c, distance[a]]
            for b in range(len(distance)):
                at = distance[a] + distance[b]
                if b == 0:
                    residual[c, a, b] = 1.0
                elif at > last or now <= 0.0:
                    residual[c, a, b] = 0.0
                else:
                    residual[c, a, b] = survival[c, at] / now


@kernel
def load_batches(
    columns: IntArray, offset: IntArray, counts: IntArray, totals: IntArray, devices: IntArray, numbers: IntArray
) -> int:
    """Fill `numbers` int64[9, D], the int columns of `Batches`, from lease pool and fleet totals; no forecast yet.

    Returns the longest batch that a device could have, in requests.
    """
    width = 1
    for d in range(len(devices)):
        g = devices[d]
        n, slots, block = counts[g], totals[5, g], totals[7, g]
        held, known = 0, 1
        for row in range(offset[g], offset[g] + n):
            held += in_blocks(columns[1, row] + columns[2, row] + 1, block)
            if columns[4, row] == 0:
                known = 0
        numbers[0, d], numbers[1, d], numbers[2, d], numbers[3, d] = g, totals[8, g], block, max(slots - n, 0)
        numbers[4, d], numbers[5, d], numbers[6, d], numbers[7, d], numbers[8, d] = held, n, known, UNBUILT, 0
        width = max(width, slots, n)
    return width


@kernel
def _build_exact(leases: Leases, batches: Batches, d: int) -> None:
    g, block = batches.device[d], batches.block[d]
    start, n = leases.offset[g], leases.counts[g]
    left = np.maximum(leases.columns[4, start : start + n] - leases.columns[2, start : start + n], 1)
    order = np.argsort(left)
    for i in range(n):
        row = start + order[i]
        batches.remaining[d, i] = left[order[i]]
        batches.size[d, i] = leases.columns[1, row] + leases.columns[2, row] + 1
    for i in range(n):
        total = 0
        for j in range(i, n):
            total += in_blocks(batches.size[d, j] + batches.remaining[d, i] - 1, block)
        batches.load[d, i] = total
    batches.mode[d], batches.hot[d] = EXACT, 0


@kernel
def _put_on_grid(tables: Tables, batches: Batches, d: int, size: int, age: int, length_class: int, exact: int) -> None:
    """Add one request to the mean and the variance; a request rounded up to blocks wastes half of one on average."""
    base = size + 0.5 * (batches.block[d] - 1)
    mean, variance = batches.mean[d], batches.variance[d]
    if exact > 0:
        left = max(exact - age, 1)
        for b in range(len(tables.distance)):
            if tables.distance[b] >= left:
                break
            mean[b] += base + min(tables.growth[b], left - 1)
        return
    alive = tables.residual[length_class, tables.age_index[min(age, len(tables.age_index) - 1)]]
    for b in range(len(tables.distance)):
        tokens = base + tables.growth[b]
        mean[b] += alive[b] * tokens
        variance[b] += alive[b] * (1.0 - alive[b]) * tokens * tokens


@kernel
def _build_grid(leases: Leases, tables: Tables, batches: Batches, d: int) -> None:
    """From the ledger, and where an exact forecast exists from that: it has the candidates taken since."""
    batches.mean[d] = 0.0
    batches.variance[d] = 0.0
    if batches.mode[d] == EXACT:
        for i in range(batches.leases[d]):
            _put_on_grid(tables, batches, d, batches.size[d, i], 0, 0, batches.remaining[d, i])
    else:
        g = batches.device[d]
        for row in range(leases.offset[g], leases.offset[g] + leases.counts[g]):
            prompt, decoded = leases.columns[1, row], leases.columns[2, row]
            length_class, exact = leases.columns[3, row], leases.columns[4, row]
            _put_on_grid(tables, batches, d, prompt + decoded + 1, decoded, length_class, exact)
    batches.mode[d], batches.hot[d] = GRID, 0


@kernel
def ensure_forecast(leases: Leases, tables: Tables, batches: Batches, d: int, exact: int) -> None:
    """Build the forecast that a candidate with this exact length (0: unknown) is judged by."""
    if batches.mode[d] == GRID:
        return
    if batches.known[d] == 0 or exact == 0:
        _build_grid(leases, tables, batches, d)
    elif batches.mode[d] == UNBUILT:
        _build_exact(leases, batches, d)


@kernel
def _exact_safe(batches: Batches, d: int, size: int, left: int) -> bool:
    """Whether no peak within the next `left` periods would exceed the capacity with one more request that long."""
    capacity, block, n = batches.capacity[d], batches.block[d], batches.leases[d]
    remaining, load = batches.remaining[d], batches.load[d]
    hot = batches.hot[d]
    if hot < n and remaining[hot] <= left and load[hot] + in_blocks(size + remaining[hot] - 1, block) > capacity:
        return False
    i = 0
    while i < n and remaining[i] <= left:
        if load[i] + in_blocks(size + remaining[i] - 1, block) > capacity:
            batches.hot[d] = i
            return False
        i += 1
    total = in_blocks(size + left - 1, block)
    for j in range(i, n):
        total += in_blocks(batches.size[d, j] + left - 1, block)
    return bool(total <= capacity)


@kernel
def _exact_add(batches: Batches, d: int, size: int, left: int) -> None:
    """Insert one request, keeping `remaining` sorted; `leases` still counts the batch without it."""
    block, n = batches.block[d], batches.leases[d]
    remaining, sizes, load = batches.remaining[d], batches.size[d], batches.load[d]
    place = n
    while place > 0 and remaining[place - 1] > left:
        remaining[place], sizes[place], load[place] = remaining[place - 1], sizes[place - 1], load[place - 1]
        place -= 1
    remaining[place], sizes[place], load[place] = left, size, 0
    for j in range(place, n + 1):
        load[place] += in_blocks(sizes[j] + left - 1, block)
    for i in range(place):
        load[i] += in_blocks(size + remaining[i] - 1, block)


@kernel
def _bucket_safe(
    tables: Tables, batches: Batches, d: int, b: int, base: float, length_class: int, exact: int, risk: float
) -> bool:
    """E[KV] + z·sd[KV] ≤ C in one bucket with the candidate, `risk` = z²; without a square root."""
    if exact > 0:
        if tables.distance[b] >= exact:
            return True
        mean = batches.mean[d, b] + base + min(tables.growth[b], exact - 1)
        variance = batches.variance[d, b]
    else:
        alive = tables.residual[length_class, 0, b]
        tokens = base + tables.growth[b]
        mean = batches.mean[d, b] + alive * tokens
        variance = batches.variance[d, b] + alive * (1.0 - alive) * tokens * tokens
    room = batches.capacity[d] - mean
    return bool(room >= 0.0 and risk * variance <= room * room)


@kernel
def stays_safe(
    tables: Tables, batches: Batches, d: int, prompt: int, length_class: int, exact: int, risk: float
) -> bool:
    """Whether device d stays within its KV with the candidate, by the forecast that was built."""
    if batches.mode[d] == EXACT:
        return _exact_safe(batches, d, prompt + 1, exact)
    base = prompt + 1 + 0.5 * (batches.block[d] - 1)
    if not _bucket_safe(tables, batches, d, batches.hot[d], base, length_class, exact, risk):
        return False
    for b in range(len(tables.distance)):
        if not _bucket_safe(tables, batches, d, b, base, length_class, exact, risk):
            batches.hot[d] = b
            return False
    return True


@kernel
def judge(view: View, d: int, prompt: int, length_class: int, exact: int) -> int:
    """The verdict on one candidate for device d, as the batch stands."""
    leases, tables, batches, rule = view
    block, capacity = batches.block[d], batches.capacity[d]
    if in_blocks(prompt + max(exact, 1), block) > capacity:
        return NEVER_HERE
    if batches.free_slots[d] <= 0:
        return NO_SLOT
    if batches.held_tokens[d] + in_blocks(prompt + 1, block) > capacity:
        return KV_NOW
    # An empty device takes whatever can start: it runs alone, and waiting would not make it any safer.
    if rule.safety and batches.leases[d] > 0:
        ensure_forecast(leases, tables, batches, d, exact)
        if not stays_safe(tables, batches, d, prompt, length_class, exact, rule.risk):
            return KV_FUTURE
    return RELEASED


@kernel
def add(view: View, d: int, prompt: int, length_class: int, exact: int) -> None:
    """The candidate joins device d: take its slot, its KV now, and its part of the forecast."""
    leases, tables, batches, rule = view
    if rule.safety:
        ensure_forecast(leases, tables, batches, d, exact)
        if batches.mode[d] == EXACT:
            _exact_add(batches, d, prompt + 1, exact)
        else:
            _put_on_grid(tables, batches, d, prompt + 1, 0, length_class, exact)
    batches.held_tokens[d] += in_blocks(prompt + 1, batches.block[d])
    batches.free_slots[d] -= 1
    batches.leases[d] += 1
