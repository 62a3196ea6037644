"""The whole bid-price decision in one compiled call: Python's share of it would cost more than the arithmetic.

Shapes: G devices in the fleet, D of them offered, n waiting requests.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.fleet import OPEN_LEASES, FleetColumns
from bidroute.core.pace_kernels import marginal_paces
from bidroute.core.queue import ID, FloatArray, IntArray, QueueColumns
from bidroute.policies.admission_kernels import NUMBERS, View, load_batches
from bidroute.policies.alternatives_kernels import with_alternatives
from bidroute.policies.bid_kernels import Moment, bid_terms
from bidroute.policies.release_kernels import Limits, release
from bidroute.pricing.cost_kernels import Prices

Fields = tuple[Any, ...]  # of a NamedTuple


class Learned(NamedTuple):
    """What is known of lengths: `class_tokens` float64[c], and the tables of a `View`."""

    class_tokens: FloatArray
    distance: IntArray
    growth: FloatArray
    residual: FloatArray
    residual_tokens: FloatArray
    age_index: IntArray


class Rule(NamedTuple):
    """The admission rule of a `View`."""

    safety: bool
    risk: float
    max_skips: int


@kernel
def decide(
    moment: Fields,
    weights: FloatArray,
    waiting: Fields,
    fleet: Fields,
    prices: Fields,
    learned: Fields,
    rule: Fields,
    limits: Fields,
    offered: IntArray,
    taken: IntArray,
    chosen: IntArray,
    held: IntArray,
) -> int:
    """Decide who of those that wait starts on which of the devices `offered` int64[D], all of which have room.

    Returns how many take a device, and writes their ids and its positions in `offered` to `taken` int64[2, ≥n]; the
    position is D or more for those held for a device that is not offered now. `chosen` int64[≥n] is overwritten, and
    so is `held` [REASONS]: see `release`.

    Takes `Moment`, `QueueColumns`, `FleetColumns`, `Prices`, `Learned`, `Rule` and `Limits` as plain tuples, because
    a call takes those three times faster than named ones.
    """
    return _decide(
        Moment(*moment),
        weights,
        QueueColumns(*waiting),
        FleetColumns(*fleet),
        Prices(*prices),
        Learned(*learned),
        Rule(*rule),
        Limits(*limits),
        offered,
        taken,
        chosen,
        held,
    )


@kernel
def _decide(
    moment: Moment,
    weights: FloatArray,
    waiting: QueueColumns,
    fleet: FleetColumns,
    prices: Prices,
    learned: Learned,
    rule: Rule,
    limits: Limits,
    offered: IntArray,
    taken: IntArray,
    chosen: IntArray,
    held: IntArray,
) -> int:
    open_leases = fleet.totals[OPEN_LEASES]
    pace_s = np.empty(len(open_leases))
    marginal_paces(fleet.moments, fleet.prior_s, open_leases, pace_s)
    choice = with_alternatives(pace_s, fleet, offered, waiting.n)
    rows = release(
        bid_terms(moment, weights, fleet, learned.class_tokens, pace_s),
        waiting,
        prices,
        _look(fleet, learned, rule, choice.devices),
        limits,
        choice,
        chosen,
        held,
    )
    for k in range(len(rows)):
        taken[0, k], taken[1, k] = waiting.ints[ID, rows[k]], chosen[rows[k]]
    return len(rows)


@kernel
def _look(fleet: FleetColumns, learned: Learned, rule: Rule, devices: IntArray) -> View:
    """The batches of `devices` int64[D] as they are now."""
    numbers = np.empty((len(devices), NUMBERS), dtype=np.int64)
    width = load_batches(fleet.leases, fleet.offset, fleet.counts, fleet.totals, devices, numbers)
    return View(
        fleet.leases,
        fleet.offset,
        fleet.counts,
        learned.distance,
        learned.growth,
        learned.residual,
        learned.residual_tokens,
        learned.age_index,
        numbers,
        np.empty((2, len(devices), len(learned.distance))),
        np.empty((3, len(devices), width), dtype=np.int64),
        rule.safety,
        rule.risk,
        rule.max_skips,
    )
