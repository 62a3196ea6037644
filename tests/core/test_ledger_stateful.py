"""Invariant 8: open leases are the occupancy, and zero after a drain, whatever happened in between."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet, LeaseState
from bidroute.core.requests import Request


class LedgerMachine(RuleBasedStateMachine):
    """The ledger against one dictionary: request → [device, prompt, decoded, state]."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet([Device("a", 4, 100, 4), Device("b", 2, 50)])
        self.leases: dict[int, list[int]] = {}
        self.next_id = 0

    def pick(self, data: Any, *states: LeaseState) -> int | None:
        ids = sorted(i for i, lease in self.leases.items() if not states or lease[3] in states)
        return data.draw(st.sampled_from(ids)) if ids else None

    @precondition(lambda self: self.fleet.accepting())
    @rule(data=st.data(), prompt=st.integers(0, 50), count=st.integers(1, 20))
    def open(self, data: Any, prompt: int, count: int) -> None:
        device = data.draw(st.sampled_from(self.fleet.accepting()))
        for _ in range(count):
            self.fleet.open(Request(self.next_id, 0.0, prompt), device, 0)
            self.leases[self.next_id] = [device, prompt, 0, LeaseState.PENDING]
            self.next_id += 1

    @rule(data=st.data(), prefilled=st.booleans())
    def start(self, data: Any, prefilled: bool) -> None:
        if (i := self.pick(data, LeaseState.PENDING)) is not None:
            self.fleet.start(i, prefilled=prefilled)
            self.leases[i][3] = LeaseState.DECODING if prefilled else LeaseState.PREFILLING

    @rule(data=st.data(), tokens=st.integers(0, 1))
    def prefilled(self, data: Any, tokens: int) -> None:
        if (i := self.pick(data, LeaseState.PREFILLING)) is not None:
            self.fleet.prefilled(i, tokens)
            self.leases[i][2] += tokens
            self.leases[i][3] = LeaseState.DECODING

    @rule(data=st.data(), periods=st.integers(0, 9))
    def advance(self, data: Any, periods: int) -> None:
        present = [g for g, ledger in enumerate(self.fleet.ledgers) if ledger.status != 2]
        if present:
            device = data.draw(st.sampled_from(present))
            self.fleet.advance(device, periods, 0.1)
            for lease in self.leases.values():
                lease[2] += periods * (lease[0] == device and lease[3] == LeaseState.DECODING)

    @rule(data=st.data(), tokens=st.integers(0, 50))
    def progress(self, data: Any, tokens: int) -> None:
        if (i := self.pick(data)) is not None:
            self.fleet.progress(i, tokens)
            self.leases[i][2] = tokens

    @rule(data=st.data(), prompt=st.integers(0, 50))
    def reestimate(self, data: Any, prompt: int) -> None:
        if (i := self.pick(data)) is not None:
            self.fleet.reestimate(i, prompt)
            self.leases[i][1] = prompt

    @rule(data=st.data())
    def preempt(self, data: Any) -> None:
        if (i := self.pick(data, LeaseState.PREFILLING, LeaseState.DECODING)) is not None:
            self.fleet.preempt(i)
            self.leases[i][3] = LeaseState.PENDING

    @rule(data=st.data())
    def close(self, data: Any) -> None:
        if (i := self.pick(data)) is not None:
            lease = self.fleet.close(i)
            assert [lease.device, lease.prompt_tokens, lease.decoded_tokens] == self.leases.pop(i)[:3]

    @precondition(lambda self: len(self.fleet) < 6)
    @rule(slots=st.integers(1, 9), kv_tokens=st.integers(1, 99))
    def join(self, slots: int, kv_tokens: int) -> None:
        assert self.fleet.join(Device("new", slots, kv_tokens)) == len(self.fleet) - 1

    @precondition(lambda self: self.fleet.accepting())
    @rule(data=st.data(), slots=st.integers(1, 9), kv_tokens=st.integers(1, 99))
    def resize(self, data: Any, slots: int, kv_tokens: int) -> None:
        self.fleet.resize(data.draw(st.sampled_from(self.fleet.accepting())), slots, kv_tokens)

    @precondition(lambda self: self.fleet.accepting())
    @rule(data=st.data(), gone=st.booleans())
    def drain_or_leave(self, data: Any, gone: bool) -> None:
        device = data.draw(st.sampled_from(self.fleet.accepting()))
        if not gone:
            self.fleet.drain(device)
            return
        lost = {i for i, lease in self.leases.items() if lease[0] == device}
        assert {lease.request_id for lease in self.fleet.leave(device)} == lost
        for i in lost:
            del self.leases[i]

    @invariant()
    def totals_are_the_sums_of_the_leases(self) -> None:
        for g, ledger in enumerate(self.fleet.ledgers):
            mine = {i: lease for i, lease in self.leases.items() if lease[0] == g}
            pending = [lease for lease in mine.values() if lease[3] == LeaseState.PENDING]
            batch = [lease for lease in mine.values() if lease[3] != LeaseState.PENDING]
            todo = [lease for lease in mine.values() if lease[3] != LeaseState.DECODING]
            assert self.fleet.totals[:5, g].tolist() == [
                len(mine),
                len(pending),
                sum(lease[1] + lease[2] + 1 for lease in batch),
                sum(lease[1] + lease[2] + 1 for lease in pending),
                sum(lease[1] + lease[2] for lease in todo),
            ]
            rows = zip(
                ledger.ids.tolist(),
                ledger.prompt_tokens.tolist(),
                ledger.decoded_tokens.tolist(),
                ledger.state.tolist(),
                strict=True,
            )
            assert {i: [g, prompt, decoded, state] for i, prompt, decoded, state in rows} == mine
            assert (self.fleet.batch_slots[g], self.fleet.kv_tokens[g]) == (
                ledger.device.batch_slots,
                ledger.device.kv_tokens,
            )
        largest = max((self.fleet.usable_kv_tokens[g] for g in self.fleet.accepting()), default=0)
        assert self.fleet.largest_kv_tokens == largest

    def teardown(self) -> None:
        for i in list(self.leases):
            self.fleet.close(i)
        assert not self.fleet.totals[:5].any()


TestInvariant8LedgerMachine = LedgerMachine.TestCase
TestInvariant8LedgerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
