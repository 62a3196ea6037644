"""Numba kernels that price a request on a device. Shapes: D devices, b buckets, c classes, n waiting, G in the fleet.

Prices are normalised as in `price_kernels`. They are tabulated once per decision, so that one pair costs O(1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray
from bidroute.pricing.mixed_kernels import chunk_tokens, prefill_delay

SLOTS, GROWTH, PER_PROMPT, SHARE, PROMPT_SHARE, TOKENS = 0, 1, 2, 3, 4, 5  # columns of `of_class`
SLOT_SUM, KV_SUM, KV_MOMENT, SLOT_PRICE, KV_PRICE, TOKEN_SUM, TOKEN_PRICE = 0, 1, 2, 3, 4, 5, 6  # rows of `of_length`


class Prices(NamedTuple):
    """What prices are read from: `slot_price`, `kv_price`, `token_price` float64[≥G, b]; `batch_slots`, `kv_tokens`,
    `token_budget` (0: none) and `open_leases` int64[G]; `edges_periods` int64[b+1]; `class_slots`, `class_growth`
    float64[c, b], the columns of classes for a start now."""

    slot_price: FloatArray
    kv_price: FloatArray
    token_price: FloatArray
    batch_slots: IntArray
    kv_tokens: IntArray
    token_budget: IntArray
    open_leases: IntArray
    edges_periods: IntArray
    class_slots: FloatArray
    class_growth: FloatArray


class Tables(NamedTuple):
    """Prices on `devices` int64[D], tabulated so that one pair costs O(1).

    `of_class` float64[D, c, 6]: the price of a class's slots, of the KV its output grows to, and of its KV per prompt
    token; its footprint without a prompt, and per prompt token; the price of the budget it decodes from.
    `of_length` float64[D, 7, b+1]: before each of `edges_periods` int64[b+1], Σ p of one slot, Σ p and Σ k·p of one
    token, and from there on both p's; and of one token of the budget Σ p, and p from there on.
    `per_slot`, `per_token`, `per_budget` float64[D]: the shares of the device that one slot, one KV token and one token
    of its budget are (0 without a budget); `chunk` int64[D]: prompt tokens per period, where there is one.
    """

    devices: IntArray
    edges_periods: IntArray
    of_class: FloatArray
    of_length: FloatArray
    per_slot: FloatArray
    per_token: FloatArray
    per_budget: FloatArray
    chunk: IntArray


@kernel
def tabulate(prices: Prices, devices: IntArray) -> Tables:
    """The tables for these devices, int64[D]."""
    buckets, classes = len(prices.edges_periods) - 1, prices.class_slots.shape[0]
    of_class, of_length = np.zeros((len(devices), classes, 6)), np.zeros((len(devices), 7, buckets + 1))
    per_slot, per_token = np.empty(len(devices)), np.empty(len(devices))
    per_budget, chunk = np.zeros(len(devices)), np.zeros(len(devices), dtype=np.int64)
    for d in range(len(devices)):
        g = devices[d]
        per_slot[d], per_token[d] = 1.0 / prices.batch_slots[g], 1.0 / prices.kv_tokens[g]
        slot_price, kv_price = prices.slot_price[g] * per_slot[d], prices.kv_price[g] * per_token[d]
        for c in range(classes):
            table = of_class[d, c]
            for b in range(buckets):
                slots, growth = prices.class_slots[c, b], prices.class_growth[c, b]
                table[SLOTS] += slots * slot_price[b]
                table[GROWTH] += growth * kv_price[b]
                table[PER_PROMPT] += slots * kv_price[b]
                table[SHARE] += slots * per_slot[d] + growth * per_token[d]
                table[PROMPT_SHARE] += slots * per_token[d]
        sums = of_length[d]
        for b in range(buckets):
            low, high = float(prices.edges_periods[b]), float(prices.edges_periods[b + 1])
            sums[SLOT_PRICE, b], sums[KV_PRICE, b] = slot_price[b], kv_price[b]
            sums[SLOT_SUM, b + 1] = sums[SLOT_SUM, b] + slot_price[b] * (high - low)
            sums[KV_SUM, b + 1] = sums[KV_SUM, b] + kv_price[b] * (high - low)
            moment = 0.5 * (high * (high + 1.0) - low * (low + 1.0))
            sums[KV_MOMENT, b + 1] = sums[KV_MOMENT, b] + kv_price[b] * moment
        if prices.token_budget[g] > 0:
            chunk[d] = chunk_tokens(prices.token_budget[g], prices.open_leases[g])
            per_budget[d] = 1.0 / prices.token_budget[g]
            _tabulate_tokens(prices, prices.token_price[g] * per_budget[d], per_budget[d], of_class[d], sums)
    return Tables(devices, prices.edges_periods, of_class, of_length, per_slot, per_token, per_budget, chunk)


@kernel
def _tabulate_tokens(
    prices: Prices, token_price: FloatArray, per_budget: float, of_class: FloatArray, sums: FloatArray
) -> None:
    """The tables of one device's token budget, whose tokens cost `token_price` [b]. A decoding request takes one token
    per period but in its first, when it has its prompt in the budget."""
    edges = prices.edges_periods
    for b in range(len(token_price)):
        sums[TOKEN_PRICE, b] = token_price[b]
        sums[TOKEN_SUM, b + 1] = sums[TOKEN_SUM, b] + token_price[b] * (edges[b + 1] - edges[b])
        for c in range(len(of_class)):
            of_class[c, TOKENS] += prices.class_slots[c, b] * token_price[b]
            of_class[c, SHARE] += prices.class_slots[c, b] * per_budget
    for c in range(len(of_class)):
        of_class[c, TOKENS] -= token_price[0]


@kernel
def cost_of_length(edges_periods: IntArray, sums: FloatArray, prompt: int, exact_tokens: int) -> tuple[float, float]:
    """Price by resource of a request of known length, from its device's row of `of_length`, [7, b+1]."""
    b = min(int(np.searchsorted(edges_periods, exact_tokens, side="right")), len(edges_periods) - 1) - 1
    low, end = float(edges_periods[b]), float(exact_tokens)
    length_price = sums[KV_SUM, b] + sums[KV_PRICE, b] * (end - low)
    moment = 0.5 * (end * (end + 1.0) - low * (low + 1.0))
    growth_price = sums[KV_MOMENT, b] + sums[KV_PRICE, b] * moment
    return sums[SLOT_SUM, b] + sums[SLOT_PRICE, b] * (end - low), prompt * length_price + growth_price


class MixedCost(NamedTuple):
    """Price by resource and footprint on a device with a token budget, and the periods that the first token is late."""

    slots: float
    kv: float
    tokens: float
    footprint: float
    delay: int


@kernel
def _bucket(edges_periods: IntArray, period: int) -> int:
    return min(int(np.searchsorted(edges_periods, period, side="right")), len(edges_periods) - 1) - 1


@kernel
def _sums_before(edges_periods: IntArray, sums: FloatArray, period: int) -> tuple[float, float, float, float]:
    """Σ p of one slot, Σ p and Σ (k+1)·p of one KV token, Σ p of one token of the budget, over k < `period`."""
    b = _bucket(edges_periods, period)
    low, end = float(edges_periods[b]), float(period)
    moment = 0.5 * (end * (end + 1.0) - low * (low + 1.0))
    return (
        sums[SLOT_SUM, b] + sums[SLOT_PRICE, b] * (end - low),
        sums[KV_SUM, b] + sums[KV_PRICE, b] * (end - low),
        sums[KV_MOMENT, b] + sums[KV_PRICE, b] * moment,
        sums[TOKEN_SUM, b] + sums[TOKEN_PRICE, b] * (end - low),
    )


@kernel
def mixed_cost(tables: Tables, d: int, prompt: int, length_class: int, exact: int) -> MixedCost:
    """What a request costs on the device at position d, which has a token budget: see `mixed_kernels`.

    One of unknown length has the columns of its class from now on, as if decoding began at once: lengths are known far
    less well than a prefill takes.
    """
    sums, chunk, per_budget = tables.of_length[d], tables.chunk[d], tables.per_budget[d]
    delay = prefill_delay(prompt, chunk)
    slots, kv, moment, tokens = _sums_before(tables.edges_periods, sums, delay)
    last_price = sums[TOKEN_PRICE, _bucket(tables.edges_periods, delay)]
    kv_cost = chunk * moment
    token_cost = chunk * tokens + (max(prompt, 1) - chunk * delay) * last_price
    share = delay * tables.per_slot[d] + 0.5 * chunk * delay * (delay + 1.0) * tables.per_token[d]
    share += max(prompt - 1, 0) * per_budget
    if exact > 0:
        end_slots, end_kv, end_moment, end_tokens = _sums_before(tables.edges_periods, sums, delay + exact)
        kv_cost += (prompt - delay) * (end_kv - kv) + end_moment - moment
        token_cost += end_tokens - tokens - last_price
        share += share_of_length(prompt, exact, tables.per_slot[d] + per_budget, tables.per_token[d])
        return MixedCost(end_slots, kv_cost, token_cost, share, delay)
    of_class = tables.of_class[d, length_class]
    kv_cost += of_class[GROWTH] + prompt * of_class[PER_PROMPT]
    share += of_class[SHARE] + prompt * of_class[PROMPT_SHARE]
    return MixedCost(slots + of_class[SLOTS], kv_cost, token_cost + of_class[TOKENS], share, delay)


@kernel
def share_of_length(prompt: int, exact_tokens: int, per_slot: float, per_token: float) -> float:
    """Footprint of a request of known length, in device-periods."""
    end = float(exact_tokens)
    return end * per_slot + (prompt * end + 0.5 * end * (end + 1.0)) * per_token


@kernel
def costs_on_devices(
    prices: Prices,
    devices: IntArray,
    prompt_tokens: IntArray,
    length_class: IntArray,
    exact_tokens: IntArray,
    slot_cost: FloatArray,
    kv_cost: FloatArray,
    token_cost: FloatArray,
    footprint: FloatArray,
) -> None:
    """Price of starting each waiting request [n] now on each of `devices` [D], by resource, and its footprint.

    The results, [D, n], are overwritten: costs in reward units, footprint in device-periods (Σ slots/B_g +
    tokens/C_g, and on devices with a token budget + its tokens/budget).
    """
    tables = tabulate(prices, devices)
    for d in range(len(devices)):
        for i in range(len(prompt_tokens)):
            prompt, exact = prompt_tokens[i], exact_tokens[i]
            token_cost[d, i] = 0.0
            if tables.per_budget[d] > 0.0:
                mixed = mixed_cost(tables, d, prompt, length_class[i], exact)
                slot_cost[d, i], kv_cost[d, i], token_cost[d, i] = mixed.slots, mixed.kv, mixed.tokens
                footprint[d, i] = mixed.footprint
            elif exact > 0:
                costs = cost_of_length(tables.edges_periods, tables.of_length[d], prompt, exact)
                slot_cost[d, i], kv_cost[d, i] = costs
                footprint[d, i] = share_of_length(prompt, exact, tables.per_slot[d], tables.per_token[d])
            else:
                table = tables.of_class[d, length_class[i]]
                slot_cost[d, i], kv_cost[d, i] = table[SLOTS], table[GROWTH] + prompt * table[PER_PROMPT]
                footprint[d, i] = table[SHARE] + prompt * table[PROMPT_SHARE]
