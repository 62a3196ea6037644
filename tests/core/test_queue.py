from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bidroute.core.queue import WaitingQueue
from bidroute.core.requests import Request
from bidroute.errors import LedgerError


def test_columns_hold_what_was_added() -> None:
    queue = WaitingQueue()
    queue.add(Request(7, 1.5, 20, priority=2.0, ttft_slo_s=3.0, e2e_slo_s=4.0), length_class=5, exact_tokens=6)
    assert queue.ids.tolist() == [7]
    assert queue.sequence.tolist() == [0]
    assert queue.prompt_tokens.tolist() == [20]
    assert queue.length_class.tolist() == [5]
    assert queue.exact_tokens.tolist() == [6]
    assert queue.skips.tolist() == [0]
    assert (queue.arrival_s[0], queue.priority[0], queue.ttft_slo_s[0], queue.e2e_slo_s[0]) == (1.5, 2.0, 3.0, 4.0)
    assert 7 in queue
    assert queue.request(7).prompt_tokens == 20


def test_ids_must_be_unique_and_present() -> None:
    queue = WaitingQueue()
    queue.add(Request(7, 0.0, 1), 0)
    with pytest.raises(LedgerError, match="request 7 waits in the queue already"):
        queue.add(Request(7, 0.0, 1), 0)
    for ask in (queue.remove, queue.position, queue.request, lambda i: queue.reestimate(i, 3)):
        with pytest.raises(LedgerError, match="request 8 does not wait"):
            ask(8)


def test_a_prompt_that_is_estimated_anew_is_so_in_column_and_request() -> None:
    queue = WaitingQueue()
    for k in (1, 2):
        queue.add(Request(k, 0.0, 10, max_tokens=5), 0)
    queue.reestimate(2, 40)
    assert queue.prompt_tokens.tolist() == [10, 40]
    assert queue.remove(2) == Request(2, 0.0, 40, max_tokens=5)


def test_a_readded_request_forgets_its_skips_and_goes_to_the_end() -> None:
    queue = WaitingQueue()
    queue.add(Request(1, 0.0, 1), 0)
    queue.add(Request(2, 0.0, 1), 0)
    queue.skips[queue.position(1)] = 5
    queue.add(queue.remove(1), 0)
    assert queue.skips[queue.position(1)] == 0
    assert queue.sequence[queue.position(1)] > queue.sequence[queue.position(2)]


class QueueMachine(RuleBasedStateMachine):
    """The queue against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.model: dict[int, tuple[int, int]] = {}
        self.entered = 0

    @rule(count=st.integers(1, 70), prompt=st.integers(0, 1000))
    def add(self, count: int, prompt: int) -> None:
        for _ in range(count):
            self.queue.add(Request(self.entered, 0.0, prompt), 0)
            self.model[self.entered] = (self.entered, prompt)
            self.entered += 1

    @rule(data=st.data(), count=st.integers(1, 70))
    def remove(self, data: Any, count: int) -> None:
        for _ in range(min(count, len(self.model))):
            request_id = data.draw(st.sampled_from(sorted(self.model)))
            assert self.queue.remove(request_id).prompt_tokens == self.model.pop(request_id)[1]
            assert request_id not in self.queue

    @invariant()
    def columns_agree(self) -> None:
        assert len(self.queue) == len(self.model)
        seen = zip(
            self.queue.ids.tolist(), self.queue.sequence.tolist(), self.queue.prompt_tokens.tolist(), strict=True
        )
        assert {i: (sequence, prompt) for i, sequence, prompt in seen} == self.model
        assert all(self.queue.ids[self.queue.position(i)] == i for i in self.model)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
