from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bidroute.core.devices import Device
from bidroute.core.fleet import LeaseState
from bidroute.core.requests import Request
from bidroute.errors import LedgerError, NeverFitsError
from bidroute.policies import Assignment, Controller, Decision, build_policy, policy_names
from tests.policies.mini_host import OneClass, Oracle


def controller(policy: str = "fifo", *, kv_tokens: int = 10, predictor: Any = None, **options: bool) -> Controller:
    devices = [Device("a", 4, kv_tokens), Device("b", 4, kv_tokens // 2)]
    return Controller(build_policy(policy), devices, predictor or OneClass(), **options)


class TestInvariant9And11Refusals:
    def test_a_prompt_that_never_fits_is_refused_at_once(self) -> None:
        c = controller()
        c.enqueue(0.0, Request(1, 0.0, 9))
        expected = "^request 2 needs 11 KV tokens; the largest device holds 10: shorten it or add a larger device$"
        with pytest.raises(NeverFitsError, match=expected):
            c.enqueue(0.0, Request(2, 0.0, 10))
        assert len(c.state.queue) == 1

    def test_max_tokens_count_where_the_caller_demands_it(self) -> None:
        controller().enqueue(0.0, Request(1, 0.0, 1, max_tokens=10))
        strict = controller(require_max_tokens=True)
        strict.enqueue(0.0, Request(1, 0.0, 1, max_tokens=9))
        with pytest.raises(NeverFitsError, match="needs 11 KV tokens"):
            strict.enqueue(0.0, Request(2, 0.0, 1, max_tokens=10))

    def test_a_known_peak_of_11_in_10_is_refused(self) -> None:
        c = controller(predictor=Oracle())
        c.enqueue(0.0, Request(1, 0.0, 1, predicted_tokens=9))
        with pytest.raises(NeverFitsError, match="needs 11 KV tokens"):
            c.enqueue(0.0, Request(2, 0.0, 1, predicted_tokens=10))

    def test_devices_that_take_nothing_do_not_count(self) -> None:
        c = controller()
        c.device_draining(0)
        with pytest.raises(NeverFitsError, match="the largest device holds 5"):
            c.enqueue(0.0, Request(1, 0.0, 7))
        c.device_left(1)
        with pytest.raises(NeverFitsError, match="no device takes requests now"):
            c.enqueue(0.0, Request(1, 0.0, 1))

    def test_what_no_device_left_could_run_is_named(self) -> None:
        c = controller()
        for i, prompt in enumerate((1, 8, 4, 5)):
            c.enqueue(0.0, Request(i, 0.0, prompt))
        assert c.stranded() == []
        c.device_left(0)
        assert sorted(c.stranded()) == [1, 3]
        c.device_resized(1, 4, 2)
        assert sorted(c.stranded()) == [1, 2, 3]

    def test_what_was_let_in_by_its_limit_is_stranded_by_it(self) -> None:
        c = controller(require_max_tokens=True)
        c.enqueue(0.0, Request(1, 0.0, 2, max_tokens=5))
        c.enqueue(0.0, Request(2, 0.0, 2, max_tokens=3))
        c.device_left(0)
        assert c.stranded() == [1]


def test_a_decision_moves_requests_from_queue_to_ledger_with_their_class() -> None:
    c = controller(predictor=Oracle())
    c.enqueue(0.0, Request(1, 0.0, 2, predicted_tokens=3))
    decision = c.decide(0.0, [0, 1])
    assert decision.assignments == [Assignment(1, 0)]
    assert len(c.state.queue) == 0
    assert c.state.fleet.ledgers[0].exact_tokens.tolist() == [3]
    with pytest.raises(LedgerError, match="request 1 has an open lease already"):
        c.enqueue(0.0, Request(1, 0.0, 2, predicted_tokens=3))


def test_a_refused_lease_loses_no_request() -> None:
    c = controller()
    c.enqueue(0.0, Request(1, 0.0, 2))
    c.device_draining(0)
    c.policy.decide = lambda now_s, state, devices: Decision([Assignment(1, 0)])  # type: ignore[method-assign]
    with pytest.raises(LedgerError, match="draining"):
        c.decide(0.0, [0])
    assert 1 in c.state.queue


def test_a_stream_seen_by_its_tokens_moves_the_ledger() -> None:
    c = controller()
    c.enqueue(0.0, Request(1, 0.0, 2))
    device = c.decide(0.0, [0, 1]).assignments[0].device
    c.started(1, prefilled=True)
    c.progressed(1, 4)
    assert c.state.fleet.ledgers[device].decoded_tokens.tolist() == [4]
    assert int(c.state.fleet.kv_tokens_used[device]) == 2 + 4 + 1


def test_finishing_teaches_the_length_model_and_cancelling_does_not() -> None:
    c = controller(kv_tokens=1000)
    for i in range(20):
        c.enqueue(0.0, Request(i, 0.0, 2))
    c.decide(0.0, [0, 1])
    before = c.state.lengths.survival.copy()
    assert c.state.fleet.open_leases.sum() == 8
    c.cancelled(0)
    c.cancelled(19)
    assert int(c.state.lengths.finished[0]) == 0
    assert np.array_equal(before, c.state.lengths.survival)
    for i in range(1, 8):
        c.finished(1.0, i, 5)
    assert int(c.state.lengths.finished[0]) == 7
    assert not np.array_equal(before, c.state.lengths.survival)
    with pytest.raises(LedgerError, match="request 0 has no open lease"):
        c.cancelled(0)


class ControllerMachine(RuleBasedStateMachine):
    """Invariant 8 at the level that hosts drive: any policy, random cancels, failures, drains, joins, resizes."""

    @initialize(policy=st.sampled_from([name for name in policy_names() if name != "bid_price"]), known=st.booleans())
    def begin(self, policy: str, known: bool) -> None:
        devices = [Device("a", 3, 60, 4), Device("b", 2, 100)]
        self.controller = Controller(build_policy(policy), devices, Oracle() if known else OneClass())
        self.known: set[int] = set()
        self.waiting: set[int] = set()
        self.leased: dict[int, int] = {}
        self.now_s = 0.0
        self.next_id = 0

    @rule(prompt=st.integers(0, 90), output=st.integers(1, 20), count=st.integers(1, 5))
    def enqueue(self, prompt: int, output: int, count: int) -> None:
        for _ in range(count):
            try:
                self.controller.enqueue(self.now_s, Request(self.next_id, self.now_s, prompt, predicted_tokens=output))
            except NeverFitsError:
                continue
            self.waiting.add(self.next_id)
            self.next_id += 1

    @rule()
    def decide(self) -> None:
        fleet = self.controller.state.fleet
        offered = fleet.accepting()
        kv_before, slots_before = fleet.kv_tokens_used + fleet.kv_tokens_pending, fleet.open_leases.copy()
        decision = self.controller.decide(self.now_s, offered)
        for assignment in decision.assignments:
            self.waiting.remove(assignment.request_id)
            self.leased[assignment.request_id] = assignment.device
            assert assignment.device in offered
        if self.controller.dispatches_on_arrival:
            assert not self.waiting or not offered
            return
        for g in {a.device for a in decision.assignments}:
            grown = fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g]
            assert grown == kv_before[g] or grown <= fleet.kv_tokens[g]
            assert fleet.open_leases[g] == slots_before[g] or fleet.open_leases[g] <= fleet.batch_slots[g]

    @rule(data=st.data(), prefilled=st.booleans())
    def start(self, data: Any, prefilled: bool) -> None:
        pending = [i for i in sorted(self.leased) if self.lease_state(i) == LeaseState.PENDING]
        if pending:
            self.controller.started(data.draw(st.sampled_from(pending)), prefilled=prefilled)

    @rule(data=st.data())
    def preempt(self, data: Any) -> None:
        running = [i for i in sorted(self.leased) if self.lease_state(i) != LeaseState.PENDING]
        if running:
            self.controller.preempted(data.draw(st.sampled_from(running)))

    @rule(data=st.data(), output=st.integers(1, 20))
    def finish(self, data: Any, output: int) -> None:
        if self.leased:
            i = data.draw(st.sampled_from(sorted(self.leased)))
            assert self.controller.finished(self.now_s, i, output).device == self.leased.pop(i)

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if self.leased or self.waiting:
            i = data.draw(st.sampled_from(sorted(self.waiting | set(self.leased))))
            self.controller.cancelled(i)
            self.waiting.discard(i)
            self.leased.pop(i, None)

    @precondition(lambda self: self.controller.state.fleet.accepting())
    @rule(data=st.data(), act=st.sampled_from(["leave", "drain", "resize", "advance"]), size=st.integers(1, 90))
    def change_device(self, data: Any, act: str, size: int) -> None:
        g = data.draw(st.sampled_from(self.controller.state.fleet.accepting()))
        if act == "advance":
            self.controller.advanced(g, 1, 0.1)
            self.now_s += 0.1
        elif act == "resize":
            self.controller.device_resized(g, size % 5 + 1, size)
        elif act == "drain":
            self.controller.device_draining(g)
        else:
            lost = {lease.request_id for lease in self.controller.device_left(g)}
            assert lost == {i for i, device in self.leased.items() if device == g}
            for i in lost:
                del self.leased[i]

    @precondition(lambda self: len(self.controller.state.fleet) < 6)
    @rule()
    def join(self) -> None:
        self.controller.device_joined(Device("new", 3, 80, speed=2.0))

    def lease_state(self, i: int) -> int:
        g, row = self.controller.state.fleet.locate(i)
        return int(self.controller.state.fleet.ledgers[g].state[row])

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        if not hasattr(self, "controller"):
            return
        now = self.controller.state
        assert set(now.queue.ids.tolist()) == self.waiting
        for g, ledger in enumerate(now.fleet.ledgers):
            assert set(ledger.ids.tolist()) == {i for i, device in self.leased.items() if device == g}
            assert now.fleet.open_leases[g] == ledger.n

    def teardown(self) -> None:
        if hasattr(self, "controller"):
            for i in sorted(self.leased):
                self.controller.finished(self.now_s, i, 1)
            assert not self.controller.state.fleet.totals[:5].any()


TestInvariant8ControllerMachine = ControllerMachine.TestCase
TestInvariant8ControllerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
