"""The best schedule of a few requests on a few devices whose pace depends on their load, by trying all of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import inf

import numpy as np

from bidroute.bounds import Problem

CostOf = Callable[[int, float], float]
Running = tuple[tuple[int, int], ...]  # (request, tokens made) of a batch


def best_total_s(
    problem: Problem, *, first_token: bool = False, cost_of: CostOf = lambda _, latency_s: latency_s
) -> float:
    """The least sum of the costs of E2E (or first-token) latencies without preemption; `cost_of` a request and its
    latency is the latency itself. A device may idle until anything happens."""
    kinds = [kind for kind in problem.kinds for _ in range(kind.count)]
    arrival = problem.arrival_s.tolist()
    prompt, output = problem.prompt_tokens.tolist(), problem.output_tokens.tolist()

    def iterate(g: int, batch: Running) -> float:
        held = sum(prompt[j] + made + 1 for j, made in batch)
        return kinds[g].base_s + kinds[g].slot_s * len(batch) + kinds[g].token_s * held

    def stays_within(g: int, batch: Running) -> bool:
        for ahead in range(int(max(output[j] - made for j, made in batch))):
            alive = [prompt[j] + made + ahead + 1 for j, made in batch if made + ahead < output[j]]
            if sum(alive) > kinds[g].kv_tokens:
                return False
        return len(batch) <= kinds[g].batch_slots

    def search(clocks: tuple[float, ...], batches: tuple[Running, ...], waiting: tuple[int, ...]) -> float:
        if not waiting and not any(batches):
            return 0.0
        g = int(np.argmin(clocks))
        now = clocks[g]
        here = [j for j in waiting if arrival[j] <= now]
        best = inf
        for count in range(len(here) + 1):
            for chosen in combinations(here, count):
                batch = batches[g] + tuple((j, 0) for j in chosen)
                later = tuple(j for j in waiting if j not in chosen)
                if not batch:
                    moments = [arrival[j] for j in later if arrival[j] > now] + [c for c in clocks if c > now]
                    if moments or not later:
                        following = min(moments, default=inf)
                        best = min(best, search(_with(clocks, g, following), _with(batches, g, ()), later))
                elif stays_within(g, batch):
                    end = now + iterate(g, batch)
                    after = tuple((j, made + 1) for j, made in batch)
                    ended = [j for j, made in after if made >= output[j]]
                    counted = chosen if first_token else ended
                    cost = sum(cost_of(j, end - arrival[j]) for j in counted)
                    left = tuple(one for one in after if one[0] not in ended)
                    best = min(best, cost + search(_with(clocks, g, end), _with(batches, g, left), later))
        return best

    return search((0.0,) * len(kinds), ((),) * len(kinds), tuple(range(len(arrival))))


def _with(values: tuple, at: int, value: object) -> tuple:
    return (*values[:at], value, *values[at + 1 :])
