"""Numba kernels that price a request on a device. Shapes: D devices, b buckets, c classes, n waiting, G in the fleet.

Prices are normalised as in `price_kernels`. They are tabulated once per decision, so that one pair costs O(1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray

SLOTS, GROWTH, PER_PROMPT, SHARE, PROMPT_SHARE = 0, 1, 2, 3, 4  # columns of `of_class`
SLOT_SUM, KV_SUM, KV_MOMENT, SLOT_PRICE, KV_PRICE = 0, 1, 2, 3, 4  # rows of `of_length`


class Prices(NamedTuple):
    """What prices are read from: `slot_price`, `kv_price` float64[≥G, b]; `batch_slots`, `kv_tokens` int64[G];
    `edges_periods` int64[b+1]; `class_slots`, `class_growth` float64[c, b], the columns of classes for a start now."""

    slot_price: FloatArray
    kv_price: FloatArray
    batch_slots: IntArray
    kv_tokens: IntArray
    edges_periods: IntArray
    class_slots: FloatArray
    class_growth: FloatArray


class Tables(NamedTuple):
    """Prices on `devices` int64[D], tabulated so that one pair costs O(1).

    `of_class` float64[D, c, 5]: the price of a class's slots, of the KV its output grows to, and of its KV per prompt
    token; its footprint without a prompt, and per prompt token. `of_length` float64[D, 5, b+1]: before each of
    `edges_periods` int64[b+1], Σ p of one slot, Σ p and Σ k·p of one token, and from there on both p's.
    `per_slot`, `per_token` float64[D]: the shares of the device that one slot and one token are.
    """

    devices: IntArray
    edges_periods: IntArray
    of_class: FloatArray
    of_length: FloatArray
    per_slot: FloatArray
    per_token: FloatArray


@kernel
def tabulate(prices: Prices, devices: IntArray) -> Tables:
    """The tables for these devices, int64[D]."""
    buckets, classes = len(prices.edges_periods) - 1, prices.class_slots.shape[0]
    of_class, of_length = np.zeros((len(devices), classes, 5)), np.zeros((len(devices), 5, buckets + 1))
    per_slot, per_token = np.empty(len(devices)), np.empty(len(devices))
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
    return Tables(devices, prices.edges_periods, of_class, of_length, per_slot, per_token)


@kernel
def cost_of_length(edges_periods: IntArray, sums: FloatArray, prompt: int, exact_tokens: int) -> tuple[float, float]:
    """Price by resource of a request of known length, from its device's row of `of_length`, [5, b+1]."""
    b = min(int(np.searchsorted(edges_periods, exact_tokens, side="right")), len(edges_periods) - 1) - 1
    low, end = float(edges_periods[b]), float(exact_tokens)
    length_price = sums[KV_SUM, b] + sums[KV_PRICE, b] * (end - low)
    moment = 0.5 * (end * (end + 1.0) - low * (low + 1.0))
    growth_price = sums[KV_MOMENT, b] + sums[KV_PRICE, b] * moment
    return sums[SLOT_SUM, b] + sums[SLOT_PRICE, b] * (end - low), prompt * length_price + growth_price


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
    footprint: FloatArray,
) -> None:
    """Price of starting each waiting request [n] now on each of `devices` [D], by resource, and its footprint.

    The results, [D, n], are overwritten: costs in reward units, footprint in device-periods (Σ slots/B_g +
    tokens/C_g).
    """
    tables = tabulate(prices, devices)
    for d in range(len(devices)):
        for i in range(len(prompt_tokens)):
            prompt, exact = prompt_tokens[i], exact_tokens[i]
            if exact > 0:
                costs = cost_of_length(tables.edges_periods, tables.of_length[d], prompt, exact)
                slot_cost[d, i], kv_cost[d, i] = costs
                footprint[d, i] = share_of_length(prompt, exact, tables.per_slot[d], tables.per_token[d])
            else:
                table = tables.of_class[d, length_class[i]]
                slot_cost[d, i], kv_cost[d, i] = table[SLOTS], table[GROWTH] + prompt * table[PER_PROMPT]
                footprint[d, i] = table[SHARE] + prompt * table[PROMPT_SHARE]
