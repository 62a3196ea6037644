"""Invariant 8 through policies: under any order of events, what is leased is what runs, and everything drains."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bidroute.core.devices import Device
from bidroute.core.leases import LeaseState, Status
from bidroute.core.lengths import LengthModel
from bidroute.core.objective import parse_objective
from bidroute.core.requests import Request
from bidroute.errors import NeverFitsError
from bidroute.lengths.base import LengthPrediction, LengthPredictor
from bidroute.policies import Controller, build_policy
from bidroute.policies.base import Explanation, Hold
from bidroute.policies.bid_price import BidPrice

OBJECTIVES = ["balanced", "tail", "goodput", "throughput", "sigma=1,alpha=0.1,throughput=0,latency=0,tail=0"]
CLASSES = 300
HORIZON_TOKENS = 256
PRIORITIES = st.sampled_from([0.0, 0.0, 0.0, 1.0, -1.0, 1000.0, -1000.0])
SLOS_S = st.sampled_from([math.inf, math.inf, 1e-6, 1.0, 1e6])
DEVICES = st.builds(
    Device,
    st.just("d"),
    st.integers(1, 6),
    st.integers(1, 300),
    st.sampled_from([1, 1, 16]),
    st.sampled_from([1e-4, 0.02, 10.0]),
)


class TenantClasses(LengthPredictor):
    """The tenant names the class; a prediction is the exact length."""

    def __init__(self) -> None:
        self.model = LengthModel(CLASSES, HORIZON_TOKENS)

    def predict(self, request: Request) -> LengthPrediction:
        return LengthPrediction(int(request.tenant), int(request.predicted_tokens or 0))


class ChurnMachine(RuleBasedStateMachine):
    """A host whose devices and requests come and go at random; it keeps its own account of who is where."""

    policy: ClassVar[str]
    fills_empty_devices: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.next_id = 0
        self.requests: dict[int, Request] = {}
        self.waiting: set[int] = set()
        self.running: dict[int, int] = {}
        self.preempted: set[int] = set()

    @initialize(devices=st.lists(DEVICES, min_size=1, max_size=4))
    def begin(self, devices: list[Device]) -> None:
        self.controller = Controller(build_policy(self.policy), devices, TenantClasses())
        self.fleet, self.queue = self.controller.state.fleet, self.controller.state.queue

    # --- time and requests ------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 1e-9, 0.01, 1.0, 3600.0, 1e7, -5.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(
        count=st.integers(1, 8),
        prompt=st.integers(0, 120),
        length_class=st.integers(0, CLASSES - 1),
        exact=st.one_of(st.none(), st.integers(1, 400)),
        priority=PRIORITIES,
        ttft_slo_s=SLOS_S,
        e2e_slo_s=SLOS_S,
    )
    def arrive(
        self,
        count: int,
        prompt: int,
        length_class: int,
        exact: int | None,
        priority: float,
        ttft_slo_s: float,
        e2e_slo_s: float,
    ) -> None:
        for _ in range(count):
            request = Request(
                self.next_id,
                self.now_s,
                prompt,
                predicted_tokens=exact,
                priority=priority,
                tenant=str(length_class),
                ttft_slo_s=ttft_slo_s,
                e2e_slo_s=e2e_slo_s,
            )
            self.requests[self.next_id] = request
            self.enqueue(request)
            self.next_id += 1

    def enqueue(self, request: Request) -> None:
        try:
            self.controller.enqueue(self.now_s, request)
        except NeverFitsError:
            assert not self.fleet.fits(request.prompt_tokens + int(request.predicted_tokens or 1))
        else:
            self.waiting.add(request.id)

    @rule()
    def refresh(self) -> None:
        self.controller.update(self.now_s)

    @rule(data=st.data())
    def decide(self, data: Any) -> None:
        accepting = self.fleet.accepting()
        offered = data.draw(st.lists(st.sampled_from(accepting), unique=True)) if accepting else []
        self.controller.update(self.now_s)
        self.decided(sorted(offered))

    @rule()
    def decide_everywhere(self) -> None:
        self.decided(self.fleet.accepting())

    def decided(self, offered: Sequence[int]) -> None:
        """Ask the policy, check that all it released can start there now, and start it."""
        empty = [g for g in offered if self.fleet.open_leases[g] == 0]
        decision = self.controller.decide(self.now_s, offered)
        assignments, for_later = decision.assignments, Hold.FASTER in decision.held
        for assignment in assignments:
            assert assignment.device in offered
            self.waiting.remove(assignment.request_id)
            self.running[assignment.request_id] = assignment.device
        for device in {assignment.device for assignment in assignments}:
            assert self.fleet.open_leases[device] <= self.fleet.batch_slots[device]
            held = self.fleet.kv_tokens_used[device] + self.fleet.kv_tokens_pending[device]
            assert held <= self.fleet.usable_kv_tokens[device]
        for assignment in assignments:
            self.controller.started(assignment.request_id, prefilled=True)
        if self.fills_empty_devices and not for_later:
            for device in empty:
                assert self.fleet.open_leases[device] > 0 or not any(self.fits(i, device) for i in self.waiting)

    def fits(self, request_id: int, device: int) -> bool:
        request = self.requests[request_id]
        peak_tokens = request.prompt_tokens + int(request.predicted_tokens or 1)
        return bool(peak_tokens <= self.fleet.usable_kv_tokens[device])

    @rule()
    def explain(self) -> None:
        """Asking for reasons changes nothing, and the reasons are numbers."""
        policy, offered = self.controller.policy, self.fleet.accepting()
        skips, before = self.queue.skips.copy(), policy.prices()
        explained = policy.explain(self.now_s, self.controller.state, offered, sorted(self.waiting))
        assert all(_is_finite(one) for one in explained)
        assert {one.request_id for one in explained} == (self.waiting if offered else set())
        assert np.array_equal(self.queue.skips, skips)
        after = policy.prices()
        if before is not None and after is not None:
            assert np.array_equal(before.slot_price, after.slot_price[: len(before.slot_price)])
            assert np.array_equal(before.kv_price, after.kv_price[: len(before.kv_price)])

    def some_running(self, data: Any) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(self.running)), unique=True)) if self.running else []

    @rule(data=st.data(), output=st.integers(1, 2 * HORIZON_TOKENS))
    def finish(self, data: Any, output: int) -> None:
        for i in self.some_running(data):
            assert self.controller.finished(self.now_s, i, output).device == self.running.pop(i)
            self.preempted.discard(i)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        for i in self.some_running(data):
            self.controller.cancelled(i)
            del self.running[i]
            self.preempted.discard(i)
        if self.waiting:
            i = data.draw(st.sampled_from(sorted(self.waiting)))
            self.controller.cancelled(i)
            self.waiting.remove(i)

    @rule(data=st.data())
    def preempt_or_resume(self, data: Any) -> None:
        for i in self.some_running(data):
            if i in self.preempted:
                self.controller.started(i, prefilled=True)
            else:
                self.controller.preempted(i)
            self.preempted ^= {i}

    @rule(data=st.data(), tokens=st.integers(0, 2 * HORIZON_TOKENS))
    def progress(self, data: Any, tokens: int) -> None:
        for i in self.some_running(data):
            self.controller.progressed(i, tokens)

    @rule(data=st.data(), periods=st.integers(1, 300), period_s=st.sampled_from([0.0, 1e-4, 0.02, 100.0]))
    def advance(self, data: Any, periods: int, period_s: float) -> None:
        if present := self.present():
            self.controller.advanced(data.draw(st.sampled_from(present)), periods, periods * period_s)

    # --- devices ----------------------------------------------------------------------------------------------

    def present(self) -> list[int]:
        return [g for g, ledger in enumerate(self.fleet.ledgers) if ledger.status is not Status.LEFT]

    @precondition(lambda self: len(self.fleet) < 8)
    @rule(device=DEVICES)
    def join(self, device: Device) -> None:
        assert self.controller.device_joined(device) == len(self.fleet) - 1

    @rule(data=st.data())
    def drain(self, data: Any) -> None:
        if accepting := self.fleet.accepting():
            self.controller.device_draining(data.draw(st.sampled_from(accepting)))

    @rule(data=st.data(), slots=st.integers(1, 6), kv_tokens=st.integers(1, 300))
    def resize(self, data: Any, slots: int, kv_tokens: int) -> None:
        if present := self.present():
            self.controller.device_resized(data.draw(st.sampled_from(present)), slots, kv_tokens)

    @rule(data=st.data(), retry=st.booleans())
    def leave(self, data: Any, retry: bool) -> None:
        if present := self.present():
            device = data.draw(st.sampled_from(present))
            lost = {lease.request_id for lease in self.controller.device_left(device)}
            assert lost == {i for i, where in self.running.items() if where == device}
            for i in sorted(lost):
                del self.running[i]
                if retry:
                    self.enqueue(self.requests[i])
            self.preempted -= lost

    @rule()
    def refuse_the_stranded(self) -> None:
        for i in self.controller.stranded():
            self.controller.cancelled(i)
            self.waiting.remove(i)

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_is_what_runs(self) -> None:
        if not hasattr(self, "fleet"):
            return
        assert set(self.queue.ids.tolist()) == self.waiting
        for g, ledger in enumerate(self.fleet.ledgers):
            mine = {i for i, where in self.running.items() if where == g}
            assert set(ledger.ids.tolist()) == mine
            assert self.fleet.open_leases[g] == len(mine)
            pending = ledger.ids[ledger.state == LeaseState.PENDING].tolist()
            assert set(pending) == mine & self.preempted
        prices = self.controller.policy.prices()
        if prices is not None:
            assert np.all(np.isfinite(prices.slot_price) & (prices.slot_price >= 0.0))
            assert np.all(np.isfinite(prices.kv_price) & (prices.kv_price >= 0.0))

    def teardown(self) -> None:
        """Nothing new arrives: all that fits is served, and no lease is left."""
        if not hasattr(self, "fleet"):
            return
        self.refuse_the_stranded()
        patience = 200 + 20 * len(self.waiting)
        while self.waiting or self.running:
            self.now_s += 1.0
            for i in sorted(self.running):
                self.controller.finished(self.now_s, i, 5)
            self.running.clear()
            self.preempted.clear()
            self.controller.update(self.now_s)
            self.decided(self.fleet.accepting())
            patience -= 1
            assert patience > 0, f"{len(self.waiting)} requests wait for ever before an empty fleet"
        assert not self.fleet.totals[:5].any()


class BidPriceChurn(ChurnMachine):
    policy = "bid_price"
    fills_empty_devices = True

    @rule(
        objective=st.sampled_from(
            ["tail", "goodput", "throughput", "sigma=1,alpha=0.1,throughput=0,latency=0,tail=0", "balanced"]
        )
    )
    def change_objective(self, objective: str) -> None:
        assert isinstance(self.controller.policy, BidPrice)
        self.controller.policy.objective = parse_objective(objective)


class FifoChurn(ChurnMachine):
    policy = "fifo+safety"


class LeastFootprintChurn(ChurnMachine):
    policy = "least_footprint+safety+ageing"


def _is_finite(one: Explanation) -> bool:
    return all(map(math.isfinite, [one.value, one.wait_s, *one.reward.values(), *one.price.values()]))


CHURN = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestInvariant8BidPriceUnderChurn = BidPriceChurn.TestCase
TestInvariant8BidPriceUnderChurn.settings = CHURN
TestInvariant8FifoUnderChurn = FifoChurn.TestCase
TestInvariant8FifoUnderChurn.settings = CHURN
TestInvariant8LeastFootprintUnderChurn = LeastFootprintChurn.TestCase
TestInvariant8LeastFootprintUnderChurn.settings = CHURN
