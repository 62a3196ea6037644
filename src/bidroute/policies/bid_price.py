"""The bid-price policy: release a request when its reward exceeds the price of what it will occupy.

At a decision every waiting request j is priced on each device g that could take one now (docs/how-it-works.md):

    value[j, g] = reward[j, g] − cost[j, g]      its reduced cost: hold unless positive
    rank by       reward[j, g] / cost[j, g]      reward per unit of price paid

and the admission check releases, down that order, what can start and stays safe. A request is ranked where its value
is highest, also among devices that have room but are in the middle of a period: for those it is held (see
`alternatives`). Both have the same sign of judgement (the value is positive where the ratio exceeds 1), but the
ratio's order depends only on the exchange rate between slots and KV, not on the level of prices, so it is right before
the level has been found. What is scarce nowhere has price 0; a small share of the running price scale is added to
every cost in the ratio alone, so that among equals the smaller footprint goes first.
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
from bidroute.policies.alternatives import consider
from bidroute.policies.alternatives_kernels import Choice
from bidroute.policies.arrivals import ArrivalHistory
from bidroute.policies.base import Assignment, Decision, Explanation, Hold, Policy, Timing
from bidroute.policies.bid_kernels import rank_by_best_device
from bidroute.policies.bids import Bidding, Bids, moment_of
from bidroute.policies.decision_kernels import decide
from bidroute.policies.patience import SojournTracker, trusted_patience
from bidroute.policies.price_updates import PriceUpdates
from bidroute.policies.registry import PolicySettings, register
from bidroute.policies.release_kernels import FOR_LATER, PRICED_OUT, REASONS, Limits
from bidroute.pricing.cost_kernels import Prices
from bidroute.pricing.prices import STEP, PriceSnapshot, ShadowPrices

DEFAULT_RISK_Z = 2.5
DEFAULT_MAX_SKIPS = 8
MOST_STEP = 1.0
LIMITS = tuple(Limits(pairs=16_384, spare=48, idle_cut=0.5))


class BidPrice(Policy):
    """Central queue, shadow prices, safe admission; one default for every workload.

    `risk_z`: standard deviations of KV kept free (0 plans with the mean). `max_skips`: how often smaller requests
    may be taken past one that ranks first but does not fit yet. `step`: how far an update moves a price, as a share of
    the price scale. `seed`: of the samples that prices learn from.
    `forecast`: whether prices count the arrivals to come, or only those who wait.
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
        forecast: bool = True,
        step: float = STEP,
    ) -> None:
        if not 0.0 < step <= MOST_STEP:
            raise ConfigError(f"step={step:g}; expected a share of the price scale, above 0 and {MOST_STEP:g} at most")
        self.objective = objective
        self.shadow_prices = ShadowPrices(step=step)
        self._admission = Admission(risk_z=risk_z, max_skips=max_skips)
        self._history = ArrivalHistory()
        self._sojourn = SojournTracker()
        self._updates = PriceUpdates(self.shadow_prices, self._history, seed, forecast=forecast)
        self._new_arrivals = 0
        self._service_s = 1.0
        self._resolution = 0.0  # how well the lengths of those who wait can be told apart
        self._taken: IntArray = np.empty((2, 64), dtype=np.int64)  # these three are written by `decide`
        self._chosen: IntArray = np.empty(64, dtype=np.int64)
        self._held: IntArray = np.empty(REASONS, dtype=np.int64)

    @property
    def threshold_s(self) -> float:
        """The completion time past which a request is overdue, in seconds."""
        if self.objective.threshold_s:
            return self.objective.threshold_s
        patience = trusted_patience(self.objective.patience, self._resolution, self._sojourn.waiting_share)
        return patience * max(self._sojourn.mean_s, self._service_s)

    def request_arrived(self, now_s: float, request: Request, length_class: int) -> None:
        """Remember the arrival for the forecast."""
        self._history.add(now_s, request.prompt_tokens, length_class)
        self._new_arrivals += 1

    def update(self, now_s: float, state: RoutingState) -> None:
        """Track the mean sojourn, step the prices when due, and tabulate what lengths have taught since."""
        if self._new_arrivals:
            running = int(state.fleet.open_leases[state.fleet.members].sum())
            self._sojourn.observe(len(state.queue), running, self._history.rate_per_s(now_s), self._new_arrivals)
            self._new_arrivals = 0
            self._service_s = self._updates.service_s(state)
        if len(state.queue):
            known = float(np.mean(state.queue.exact_tokens > 0))
            self._resolution = known + (1.0 - known) * state.lengths.resolution
        self._updates.run(now_s, state, self.objective, self.threshold_s)
        self._admission.residuals.refresh(state.lengths)
        self.shadow_prices.columns(state.lengths)

    def decide(self, now_s: float, state: RoutingState, devices: Sequence[int]) -> Decision:
        """Release what is worth its price, can start and stays safe, best reward per price first."""
        if not len(state.queue) or not devices:
            return Decision()
        ids, positions = self._take(now_s, state, devices, self.shadow_prices.view(state))
        taken = zip(ids, positions, strict=True)
        assignments = [Assignment(i, devices[position]) for i, position in taken if position < len(devices)]
        return Decision(assignments, _held(self._held.tolist()))

    def _take(
        self, now_s: float, state: RoutingState, devices: Sequence[int], view: Prices
    ) -> tuple[list[int], list[int]]:
        """Decide at these prices, which it may lower: ids of those that take a device, and its position; see
        `decision_kernels.decide`."""
        queue, lengths, admission, prices = state.queue, state.lengths, self._admission, self.shadow_prices
        if len(self._chosen) < len(queue):
            self._taken = np.empty((2, 2 * len(queue)), dtype=np.int64)
            self._chosen = np.empty(2 * len(queue), dtype=np.int64)
        count = decide(
            tuple(moment_of(now_s, self.threshold_s, self._price_scale)),
            self.objective.weights(),
            tuple(queue.columns()),
            tuple(state.fleet.columns()),
            tuple(view),
            (prices.columns(lengths).mean_tokens, *admission.residuals.refresh(lengths)),
            admission.rule,
            LIMITS,
            np.array(devices, dtype=np.int64),
            self._taken,
            self._chosen,
            self._held,
        )
        ids, positions = self._taken[:, :count].tolist()
        return ids, positions

    def explain(
        self, now_s: float, state: RoutingState, devices: Sequence[int], request_ids: Sequence[int]
    ) -> list[Explanation]:
        """Reward by term, price by resource and what holds it, for each request on the device it ranks best on."""
        if not len(state.queue) or not devices:
            return []
        bidding = self._bidding(state)
        choice = self._choice(state, devices, bidding)
        bid = bidding.bids(now_s, state, choice.devices, choice.later_s)
        rank_by_best_device(bid.reward, bid.value, bid.ratio)
        skips, view = state.queue.skips.copy(), self.shadow_prices.view(state)
        view = view._replace(  # prices of this account alone: an update may step the others meanwhile
            slot_price=view.slot_price.copy(), kv_price=view.kv_price.copy(), token_price=view.token_price.copy()
        )
        taken = dict(zip(*self._take(now_s, state, devices, view), strict=True))
        state.queue.skips[:] = skips
        self._admission.begin(state, choice.devices)
        return [self._explain_one(now_s, state, choice, bidding, bid, taken, request_id) for request_id in request_ids]

    def prices(self) -> PriceSnapshot:
        """Prices of all of a device's slots, of all its KV, and of the tokens of its iterations, per period."""
        return self.shadow_prices.snapshot()

    # --- parts of a decision ----------------------------------------------------------------------------------

    @property
    def _price_scale(self) -> float:
        return self._updates.price_scale or 1.0

    def _bidding(self, state: RoutingState) -> Bidding:
        pace_s = state.fleet.paces.marginal_s(state.fleet.open_leases)
        return Bidding(self.objective, self.shadow_prices, self._price_scale, self.threshold_s, pace_s)

    def _choice(self, state: RoutingState, devices: Sequence[int], bidding: Bidding) -> Choice:
        return consider(state.fleet, np.asarray(devices, dtype=np.int64), bidding.pace_s, len(state.queue))

    def _explain_one(
        self,
        now_s: float,
        state: RoutingState,
        choice: Choice,
        bidding: Bidding,
        bid: Bids,
        taken: dict[int, int],
        request_id: int,
    ) -> Explanation:
        row = state.queue.position(request_id)
        ready, position = choice.devices, int(np.argmax(bid.ratio[:, row]))
        held_by: Hold | None = None
        if request_id in taken:
            held_by = None if taken[request_id] < choice.offered else Hold.FASTER
            position = taken[request_id] if taken[request_id] < len(ready) else position
        elif bid.value[position, row] <= 0.0:
            held_by = Hold.PRICE
        else:
            queue = state.queue
            verdict = self._admission.judge(
                position, int(queue.prompt_tokens[row]), int(queue.length_class[row]), int(queue.exact_tokens[row])
            )
            held_by = Hold.ORDER if verdict == RELEASED else HOLD_BY_VERDICT[verdict]
        return Explanation(
            request_id=request_id,
            device=int(ready[position]),
            now_s=now_s,
            wait_s=now_s - float(state.queue.arrival_s[row]),
            reward=bidding.reward_terms(now_s, state, int(ready[position]), row, float(choice.later_s[position])),
            price=_price_by_resource(state, bid, int(ready[position]), position, row),
            value=float(bid.value[position, row]),
            rank=int(np.count_nonzero(bid.ratio.max(axis=0) > bid.ratio[:, row].max())),
            waiting=len(state.queue),
            held_by=held_by,
            instead=[other for other, d in taken.items() if other != request_id and d < choice.offered],
        )


def _price_by_resource(state: RoutingState, bid: Bids, device: int, position: int, row: int) -> dict[str, float]:
    """The cost of one pair by resource; the token budget only where the device has one."""
    price = {"slots": float(bid.costs.slots[position, row]), "kv": float(bid.costs.kv[position, row])}
    if state.fleet.token_budget[device] > 0:
        price["token_budget"] = float(bid.costs.tokens[position, row])
    return price


_HOLD_BY_REASON = {**HOLD_BY_VERDICT, PRICED_OUT: Hold.PRICE, FOR_LATER: Hold.FASTER}


def _held(counts: list[int]) -> dict[Hold, int]:
    """How many were held for which reason, from counts by reason."""
    held: dict[Hold, int] = {}
    for verdict, count in enumerate(counts):
        if count:
            hold = _HOLD_BY_REASON[verdict]
            held[hold] = held.get(hold, 0) + count
    return held


@register("bid_price")
def _bid_price(settings: PolicySettings) -> Policy:
    forecast = settings.whole("forecast", 1)
    if forecast not in (0, 1):
        raise ConfigError(f"policy bid_price: forecast={forecast}; expected 0 (the queue alone) or 1")
    return BidPrice(
        parse_objective(settings.objective),
        settings.seed,
        risk_z=settings.number("risk_z", DEFAULT_RISK_Z),
        max_skips=settings.whole("max_skips", DEFAULT_MAX_SKIPS),
        forecast=bool(forecast),
        step=settings.number("step", STEP),
    )
