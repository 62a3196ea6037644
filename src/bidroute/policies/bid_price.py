"""The bid-price policy: release a request when its reward exceeds the price of what it will occupy.

At a decision every waiting request j is priced on each device g that could take one now (docs/how-it-works.md):

    value[j, g] = reward[j, g] − cost[j, g]      its reduced cost: hold unless positive
    rank by       reward[j, g] / cost[j, g]      reward per unit of price paid

and the admission check releases, down that order, what can start and stays safe. A request is ranked where its value
is highest, also among devices that have room but are in the middle of a period: for those it is held (see
`alternatives`). Both have the same sign of
judgement (the value is positive where the ratio exceeds 1), but the ratio's order depends only on the exchange
rate between slots and KV, not on the level of prices, so it is right before the level has been found. What is
scarce nowhere has price 0; a small share of the running price scale is added to every cost in the ratio alone, so
that among equals the smaller footprint goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bidroute.core.objective import Objective, parse_objective
from bidroute.core.queue import IntArray
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.errors import ConfigError
from bidroute.policies.admission import HOLD_BY_VERDICT, Admission
from bidroute.policies.admission_kernels import RELEASED
from bidroute.policies.alternatives import Considered, consider, ranked_by_best_device
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.policies.base import Assignment, Decision, Explanation, Hold, Policy, Timing
from bidroute.policies.bid_kernels import PRICED_OUT, tally
from bidroute.policies.bids import Bidding, Bids, best_first
from bidroute.policies.pace import PaceTracker
from bidroute.policies.patience import SojournTracker
from bidroute.policies.price_updates import PriceUpdates
from bidroute.policies.registry import PolicySettings, register
from bidroute.pricing.prices import PriceSnapshot, ShadowPrices

DEFAULT_RISK_Z = 1.75
DEFAULT_MAX_SKIPS = 8
SPARE_CANDIDATES = 48  # offered to the admission check beyond the free slots, best first
IDLE_CUT = 0.5  # of a device's prices, per decision that leaves room because every bid is below them
PAIRS_AT_ONCE = 16_384  # more (request, device) pairs than this are ranked on a shortlist of requests


class BidPrice(Policy):
    """Central queue, shadow prices, safe admission; one default for every workload.

    `risk_z`: standard deviations of KV kept free (0 plans with the mean). `max_skips`: how often smaller requests
    may be taken past one that ranks first but does not fit yet. `seed`: of the samples that prices learn from.
    """

    name = "bid_price"
    timing = Timing.WHEN_STARTABLE

    def __init__(
        self,
        objective: Objective,
        seed: int = 0,
        *,
        risk_z: float = DEFAULT_RISK_Z,
        max_skips: int = DEFAULT_MAX_SKIPS,
    ) -> None:
        self.objective = objective
        self.shadow_prices = ShadowPrices()
        self._admission = Admission(risk_z=risk_z, max_skips=max_skips)
        self._history = ArrivalHistory()
        self._sojourn = SojournTracker()
        self._updates = PriceUpdates(self.shadow_prices, self._history, seed)
        self._pace = PaceTracker()
        self._new_arrivals = 0
        self._service_s = 1.0

    @property
    def threshold_s(self) -> float:
        """The completion time past which a request is overdue, in seconds."""
        if self.objective.threshold_s:
            return self.objective.threshold_s
        return self.objective.patience * max(self._sojourn.mean_s, self._service_s)

    def request_arrived(self, now_s: float, request: Request, length_class: int) -> None:
        """Remember the arrival for the forecast."""
        self._history.add(now_s, request.prompt_tokens, length_class)
        self._new_arrivals += 1

    def update(self, now_s: float, state: RoutingState) -> None:
        """Track the mean sojourn, and step the prices when due."""
        if self._new_arrivals:
            inside = len(state.queue) + int(state.fleet.open_leases.sum())
            self._sojourn.observe(inside, self._history.rate_per_s(now_s), self._new_arrivals)
            self._new_arrivals = 0
            self._service_s = self._updates.service_s(state)
        self._updates.run(now_s, state, self.objective, self.threshold_s)

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        """Release what is worth its price, can start and stays safe, best reward per price first."""
        queue = state.queue
        if not len(queue) or not devices:
            return Decision()
        bidding = self._bidding(state)
        considered = self._considered(state, devices, bidding)
        ready, offered = considered.devices, considered.offered
        rows = self._shortlist(now_s, state, ready, bidding)
        bid = ranked_by_best_device(bidding.bids(now_s, state, ready, rows, considered.wait_s))
        self._admission.begin(state, ready)
        order, below = _offers(self._admission, bid)
        positions, columns = np.divmod(order, len(rows))
        walk = self._admission.walk_pairs(queue, rows[columns], positions)
        verdicts, released = walk.verdicts, walk.released
        # What would start on an alternative is held until that is offered; nobody has been passed over for it yet.
        for_later = int(np.count_nonzero(positions[released] >= offered))
        if walk.skipped_row >= 0:
            queue.skips[walk.skipped_row] += max(walk.skips - for_later, 0)
        if len(below):
            extra = self._one_per_empty_device(state, ready, rows, order[released], below)
            released = np.concatenate([released, np.arange(len(order), len(order) + len(extra))])
            order = np.concatenate([order, extra])
            verdicts = np.concatenate([verdicts, np.full(len(extra), RELEASED)])
        ids, pairs = queue.ids, [divmod(pair, len(rows)) for pair in order[released].tolist()]
        assignments = [Assignment(int(ids[rows[i]]), int(ready[d])) for d, i in pairs if d < offered]
        counts, leaves_room = np.empty(PRICED_OUT + 1, dtype=np.int64), np.empty(len(ready), dtype=np.int64)
        tally(bid.value, order, verdicts, released, counts, leaves_room)
        # Complementary slackness: room that nobody paid for is not scarce. The subgradient steps find that out
        # too, but slowly, and meanwhile capacity would stand idle before a queue held by its price.
        nobody_waits = len(released) == len(queue)
        idle = ready[:offered] if nobody_waits else ready[:offered][leaves_room[:offered] == 1]
        self.shadow_prices.cut(idle, IDLE_CUT)
        return Decision(assignments, _held(counts.tolist(), len(queue) - len(assignments), for_later))

    def explain(
        self, now_s: float, state: RoutingState, devices: Sequence[int], request_ids: Sequence[int]
    ) -> list[Explanation]:
        """Reward by term, price by resource and what holds it, for each request on the device it ranks best on."""
        if not len(state.queue) or not devices:
            return []
        bidding = self._bidding(state)
        considered = self._considered(state, devices, bidding)
        ready, rows = considered.devices, np.arange(len(state.queue))
        bid = ranked_by_best_device(bidding.bids(now_s, state, ready, rows, considered.wait_s))
        skips, prices = state.queue.skips.copy(), self.shadow_prices.snapshot()
        decision = self.decide(now_s, state, devices)
        state.queue.skips[:] = skips
        self.shadow_prices.restore(prices)
        taken = {assignment.request_id: assignment.device for assignment in decision.assignments}
        self._admission.begin(state, ready)
        return [
            self._explain_one(now_s, state, considered, bidding, bid, taken, request_id) for request_id in request_ids
        ]

    def prices(self) -> PriceSnapshot:
        """Prices of all of a device's slots, and of all its KV, per period."""
        return self.shadow_prices.snapshot()

    # --- parts of a decision ----------------------------------------------------------------------------------

    def _bidding(self, state: RoutingState) -> Bidding:
        scale, pace_s = self._updates.price_scale or 1.0, self._pace.marginal_s(state.fleet)
        return Bidding(self.objective, self.shadow_prices, scale, self.threshold_s, pace_s)

    def _considered(self, state: RoutingState, devices: Sequence[int], bidding: Bidding) -> Considered:
        least_kv_tokens = int(state.queue.prompt_tokens.min()) + 1
        return consider(state.fleet, np.asarray(devices, dtype=np.int64), bidding.pace_s, least_kv_tokens)

    def _shortlist(self, now_s: float, state: RoutingState, ready: IntArray, bidding: Bidding) -> IntArray:
        """Queue rows to consider: all, or where that makes too many pairs the best on the roomiest device."""
        n = len(state.queue)
        rows: IntArray = np.arange(n)
        if len(ready) == 1 or n * len(ready) <= PAIRS_AT_ONCE:
            return rows
        fleet = state.fleet
        roomiest = ready[np.argmax(fleet.usable_kv_tokens[ready] - fleet.kv_tokens_used[ready])]
        ratio = bidding.bids(now_s, state, np.array([roomiest]), rows).ratio[0]
        return np.sort(best_first(ratio, max(PAIRS_AT_ONCE // len(ready), SPARE_CANDIDATES)))

    def _one_per_empty_device(
        self, state: RoutingState, ready: IntArray, rows: IntArray, released: IntArray, below: IntArray
    ) -> IntArray:
        """One of the pairs below their price for each empty device that gets none of the `released` ones.

        An empty device always takes the best startable request, whatever its price: else nothing might progress.
        """
        m, queue = len(rows), state.queue
        gone, busy, extra = set((released % m).tolist()), set((released // m).tolist()), []
        idle = int(np.count_nonzero(state.fleet.open_leases[ready] == 0))
        for pair in below.tolist():
            position, column = divmod(pair, m)
            if position in busy or column in gone:
                continue
            row = int(rows[column])
            candidate = int(queue.prompt_tokens[row]), int(queue.length_class[row]), int(queue.exact_tokens[row])
            if self._admission.judge(position, *candidate) == RELEASED:
                extra.append(pair)
                busy.add(position)
                gone.add(column)
                if len(extra) == idle:
                    break
        return np.array(extra, dtype=np.int64)

    def _explain_one(
        self,
        now_s: float,
        state: RoutingState,
        considered: Considered,
        bidding: Bidding,
        bid: Bids,
        taken: dict[int, int],
        request_id: int,
    ) -> Explanation:
        row = state.queue.position(request_id)
        ready, position = considered.devices, int(np.argmax(bid.ratio[:, row]))
        held_by: Hold | None = None
        if request_id in taken:
            position = int(np.flatnonzero(ready == taken[request_id])[0])
        elif bid.value[position, row] <= 0.0:
            held_by = Hold.PRICE
        else:
            queue = state.queue
            verdict = self._admission.judge(
                position, int(queue.prompt_tokens[row]), int(queue.length_class[row]), int(queue.exact_tokens[row])
            )
            would_start = Hold.ORDER if position < considered.offered else Hold.FASTER
            held_by = would_start if verdict == RELEASED else HOLD_BY_VERDICT[verdict]
        return Explanation(
            request_id=request_id,
            device=int(ready[position]),
            now_s=now_s,
            wait_s=now_s - float(state.queue.arrival_s[row]),
            reward=bidding.reward_terms(now_s, state, int(ready[position]), row, float(considered.wait_s[position])),
            price={
                "slots": float(bid.costs.slots[position, row]),
                "kv": float(bid.costs.kv[position, row]),
            },
            value=float(bid.value[position, row]),
            rank=int(np.count_nonzero(bid.ratio.max(axis=0) > bid.ratio[:, row].max())),
            waiting=len(state.queue),
            held_by=held_by,
            instead=[other for other in taken if other != request_id],
        )


def _offers(admission: Admission, bid: Bids) -> tuple[IntArray, IntArray]:
    """Pairs to offer, as flat indexes into [D, m], best first: those worth their price; for empty devices the rest."""
    free_slots = int(admission.free_slots.sum())
    best = best_first(bid.ratio.ravel(), (free_slots + SPARE_CANDIDATES) * len(admission.free_slots))
    best = best[bid.ratio.ravel()[best] > -np.inf]
    worth_it = bid.value.ravel()[best] > 0.0
    if worth_it.all():
        return best, best[:0]
    empty = admission.empty[best // bid.ratio.shape[1]]
    return best[worth_it], best[~worth_it & empty]


def _held(counts: list[int], left: int, for_later: int) -> dict[Hold, int]:
    """How many of the `left` requests were held for which reason, `for_later` of them for a faster device.

    Those never offered were held by the order.
    """
    held: dict[Hold, int] = {}
    for verdict, hold in HOLD_BY_VERDICT.items():
        if counts[verdict]:
            held[hold] = held.get(hold, 0) + counts[verdict]
    if counts[PRICED_OUT]:
        held[Hold.PRICE] = counts[PRICED_OUT]
    if for_later:
        held[Hold.FASTER] = for_later
    rest = left - sum(held.values())
    if rest > 0:
        held[Hold.ORDER] = held.get(Hold.ORDER, 0) + rest
    return held


@register("bid_price")
def _bid_price(settings: PolicySettings) -> Policy:
    unknown = set(settings.options) - {"risk_z", "max_skips"}
    if unknown:
        raise ConfigError(f"bid_price option {min(unknown)!r} is unknown; choose from: max_skips, risk_z")
    return BidPrice(
        parse_objective(settings.objective),
        settings.seed,
        risk_z=settings.number("risk_z", DEFAULT_RISK_Z),
        max_skips=settings.whole("max_skips", DEFAULT_MAX_SKIPS),
    )
