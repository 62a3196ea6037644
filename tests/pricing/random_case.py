"""Random prices, length classes, devices and requests for the kernel tests, and columns period by period."""

from __future__ import annotations

import numpy as np

from bidroute.core.lengths import LengthModel
from bidroute.pricing.columns import class_columns
from bidroute.pricing.grid import TimeGrid
from bidroute.pricing.price_kernels import demand_at_prices

HORIZON_TOKENS = 40


class Case:
    """Everything a price kernel takes, drawn from one seed; the last bucket is shorter than the longest life."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.random = random
        self.grid = TimeGrid(np.unique(np.concatenate([[0], random.integers(1, 30, random.integers(1, 6))])))
        self.edges = self.grid.edges_periods
        self.starts = self.edges[:-1].copy()
        self.devices, self.classes = int(random.integers(1, 4)), int(random.integers(1, 4))
        medians = random.uniform(2.0, 20.0, self.classes)
        self.model = LengthModel(self.classes, HORIZON_TOKENS, medians)
        self.columns = class_columns(self.model, self.grid, self.starts)
        shape = (self.devices, self.grid.buckets)
        self.slot_price = random.exponential(1.0, shape) * random.integers(0, 2, shape)
        self.kv_price = random.exponential(1.0, shape) * random.integers(0, 2, shape)
        self.batch_slots = random.integers(1, 10, self.devices)
        self.kv_tokens = random.integers(20, 200, self.devices)
        self.token_price, self.token_budget = np.zeros(shape), np.zeros(self.devices, dtype=np.int64)
        self.open_leases = np.zeros(self.devices, dtype=np.int64)
        self.period_s = random.uniform(0.01, 1.0, self.devices)
        n = int(random.integers(1, 12))
        self.prompt_tokens = random.integers(0, 100, n)
        self.length_class = random.integers(0, self.classes, n)
        self.exact_tokens = random.integers(1, HORIZON_TOKENS + 20, n) * random.integers(0, 2, n)
        self.reward = random.exponential(2.0, n)
        self.weight = random.uniform(0.1, 5.0, n)
        self.earliest = random.choice(self.starts, n)

    def mix(self) -> None:
        """Give some devices a token budget, with prices, and open leases that leave little or nothing of it."""
        random, shape = self.random, self.slot_price.shape
        self.token_budget = random.integers(1, 40, self.devices) * random.integers(0, 3, self.devices)
        self.token_price = random.exponential(1.0, shape) * random.integers(0, 2, shape)
        self.token_price[self.token_budget == 0] = 0.0
        self.open_leases = random.integers(0, 50, self.devices)

    def survival(self, i: int) -> np.ndarray:
        """P(still running θ periods after its start) of request i, θ = 0 …"""
        if self.exact_tokens[i] > 0:
            return np.ones(self.exact_tokens[i])
        return self.model.survival[self.length_class[i]]

    def tokens(self, i: int) -> float:
        return float(self.survival(i).sum())

    def bucket(self, period: int) -> int:
        """The bucket a period belongs to; the last one has all that lies beyond."""
        return min(int(np.searchsorted(self.edges, period, side="right")) - 1, self.grid.buckets - 1)

    def held(self, i: int, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Expected slot-periods and token-periods of request i in each bucket."""
        slots, tokens = np.zeros((2, self.grid.buckets))
        for age, alive in enumerate(self.survival(i)):
            b = self.bucket(start + age)
            slots[b] += alive
            tokens[b] += alive * (self.prompt_tokens[i] + age + 1)
        return slots, tokens

    def delay(self, i: int, g: int) -> int:
        """Periods that the prompt of request i takes on device g before the one that makes its first token."""
        if self.token_budget[g] == 0:
            return 0
        chunk = max(self.token_budget[g] - self.open_leases[g], 1)
        return max(int(np.ceil(self.prompt_tokens[i] / chunk)), 1) - 1

    def mixed(self, i: int, start: int, g: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same on device g, and the tokens of its budget; all 0 of these where it has none."""
        used, delay = np.zeros(self.grid.buckets), self.delay(i, g)
        first = start + delay if self.exact_tokens[i] > 0 else start  # classes decode from the start on
        slots, tokens = self.held(i, first)
        if self.token_budget[g] == 0:
            return slots, tokens, used
        left = max(int(self.prompt_tokens[i]), 1)
        for period in range(delay + 1):
            b, chunk = self.bucket(start + period), min(left, max(self.token_budget[g] - self.open_leases[g], 1))
            used[b] += chunk
            left -= chunk
            if period < delay:
                slots[b] += 1
                tokens[b] += self.prompt_tokens[i] - left
        for age, alive in enumerate(self.survival(i)):
            used[self.bucket(first + age)] += alive if age > 0 else 0.0
        return slots, tokens, used


def demand(case: Case, decay_s: float, devices: np.ndarray) -> tuple[int, np.ndarray]:
    """What the kernel of the steps takes of a case: how many requests, and their use, float64[3, G, b]."""
    demands = np.full((3, *case.slot_price.shape), np.nan)
    taken = demand_at_prices(
        case.slot_price,
        case.kv_price,
        case.token_price,
        case.batch_slots,
        case.kv_tokens,
        case.token_budget,
        case.open_leases,
        case.period_s,
        devices,
        case.edges,
        case.starts,
        case.columns.slots,
        case.columns.growth,
        case.columns.mean_tokens,
        case.prompt_tokens,
        case.length_class,
        case.exact_tokens,
        case.reward,
        case.weight,
        case.earliest,
        decay_s,
        *demands,
    )
    return taken, demands
