import numpy as np
import pytest

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet, LeaseState, Status
from bidroute.core.requests import Request
from bidroute.errors import ConfigError, LedgerError


def fleet(*, devices: int = 2, kv_tokens: int = 100, block_size: int = 1) -> Fleet:
    return Fleet([Device(f"d{g}", 4, kv_tokens, block_size) for g in range(devices)])


def totals(f: Fleet, g: int) -> tuple[int, ...]:
    """Open, pending, KV used, KV pending, prefill tokens of one device."""
    return tuple(int(x) for x in f.totals[:5, g])


def test_an_empty_fleet_is_refused() -> None:
    with pytest.raises(ConfigError, match="no devices; expected at least one"):
        Fleet([])


def test_totals_follow_a_request_through_an_aggregated_engine() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 1, length_class=3, exact_tokens=5)
    assert totals(f, 1) == (1, 1, 0, 11, 10)
    f.start(1, prefilled=False)
    assert totals(f, 1) == (1, 0, 11, 0, 10)
    f.advance(1, 2, 0.2)  # a prefilling request decodes nothing
    assert totals(f, 1) == (1, 0, 11, 0, 10)
    f.prefilled(1, decoded_tokens=1)
    assert totals(f, 1) == (1, 0, 12, 0, 0)
    f.advance(1, 3, 0.3)
    assert totals(f, 1) == (1, 0, 15, 0, 0)
    f.preempt(1)
    assert totals(f, 1) == (1, 1, 0, 15, 14)
    f.start(1, prefilled=True)
    f.progress(1, 9)
    assert totals(f, 1) == (1, 0, 20, 0, 0)
    lease = f.close(1)
    assert (lease.request_id, lease.device, lease.prompt_tokens, lease.decoded_tokens, lease.length_class) == (
        1,
        1,
        10,
        9,
        3,
    )
    assert totals(f, 1) == totals(f, 0) == (0, 0, 0, 0, 0)


def test_what_decoding_leaves_of_a_token_budget_goes_to_prompts_in_turn() -> None:
    f = Fleet([Device("d", 9, 1000, token_budget=10)])
    for i, prompt in enumerate((5, 12, 9)):
        f.open(Request(i, 0.0, prompt), 0, 0)
        f.start(i, prefilled=i == 0)
    f.advance(0, 1, 0.1)  # one token for the first, nine of the second's prompt
    assert f.pool.columns[6, :3].tolist() == [0, 9, 0]
    f.advance(0, 1, 0.1)  # the last three of it, and six of the third's
    assert f.pool.columns[6, :3].tolist() == [0, 12, 6]
    f.prefilled(1, decoded_tokens=1)
    f.preempt(2)  # it begins anew
    f.advance(0, 1, 0.1)
    assert f.pool.columns[6, :3].tolist() == [0, 12, 0]
    assert f.ledgers[0].decoded_tokens.tolist() == [3, 2, 0]
    f.start(2, prefilled=False)
    f.reestimate(2, 3)
    f.advance(0, 2, 0.2)
    assert f.pool.columns[6, 2] == 3  # no more than its prompt has


def test_without_a_budget_prompts_are_not_followed() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 1, 0)
    f.start(1, prefilled=False)
    f.advance(1, 5, 0.5)
    assert f.pool.columns[6, f.pool.offset[1]] == 0


def test_a_resized_device_keeps_its_token_budget() -> None:
    f = Fleet([Device("d", 4, 100, token_budget=64)])
    f.resize(0, 2, 50)
    assert (f.token_budget.tolist(), f.ledgers[0].device.token_budget) == ([64], 64)


def test_progress_counts_where_the_request_stands() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 0, 0)
    f.progress(1, 4)
    assert totals(f, 0) == (1, 1, 0, 15, 14)
    f.start(1, prefilled=False)
    f.progress(1, 2)
    assert totals(f, 0) == (1, 0, 13, 0, 12)
    with pytest.raises(LedgerError, match="request 1: -1 decoded tokens; expected 0 or more"):
        f.progress(1, -1)


def test_a_prompt_that_is_estimated_anew_counts_as_that_from_then_on() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 0, 0)
    f.reestimate(1, 30)
    assert totals(f, 0) == (1, 1, 0, 31, 30)
    f.start(1, prefilled=True)
    f.reestimate(1, 20)
    assert totals(f, 0) == (1, 0, 21, 0, 0)
    with pytest.raises(LedgerError, match="request 1: -1 prompt tokens; expected 0 or more"):
        f.reestimate(1, -1)
    with pytest.raises(LedgerError, match="request 2 has no open lease"):
        f.reestimate(2, 5)


def test_a_lease_opens_once_and_closes_once() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 0, 0)
    with pytest.raises(LedgerError, match="request 1 has an open lease already"):
        f.open(Request(1, 0.0, 10), 1, 0)
    f.close(1)
    with pytest.raises(LedgerError, match="request 1 has no open lease"):
        f.close(1)


def test_events_out_of_order_are_refused() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 0, 0)
    with pytest.raises(LedgerError, match="not prefilling"):
        f.prefilled(1)
    with pytest.raises(LedgerError, match="not in the batch"):
        f.preempt(1)
    f.start(1, prefilled=True)
    with pytest.raises(LedgerError, match="started already"):
        f.start(1, prefilled=True)


def test_rows_stay_right_when_a_middle_one_closes_and_when_segments_grow() -> None:
    f = fleet(devices=3)
    for i in range(120):
        f.open(Request(i, 0.0, i), i % 3, 0)
    for i in range(0, 120, 2):
        f.close(i)
    for g in range(3):
        expected = [i for i in range(120) if i % 3 == g and i % 2 == 1]
        ledger = f.ledgers[g]
        assert sorted(ledger.ids.tolist()) == expected
        assert ledger.prompt_tokens.tolist() == ledger.ids.tolist()
        assert set(ledger.state.tolist()) == {int(LeaseState.PENDING)}
    assert all(f.ledgers[f.locate(i)[0]].ids[f.locate(i)[1]] == i for i in range(1, 120, 2))


def test_segments_of_gone_sizes_are_used_again() -> None:
    f = fleet(devices=1)
    rows = set()
    for turn in range(20):
        g = f.join(Device(f"new{turn}", 4, 100))
        for i in range(40):
            f.open(Request(i, 0.0, 1), g, 0)
        f.leave(g)
        rows.add(f.pool.columns.shape[1])
    assert max(rows) <= 2048  # 20 devices of up to 64 rows each, and what doubling leaves over


def test_a_resized_device_keeps_its_leases_and_its_pace() -> None:
    f = fleet(kv_tokens=100, block_size=16)
    f.open(Request(1, 0.0, 80), 0, 0)
    f.advance(0, 1, 1.0)
    period_s = f.period_s[0]
    f.resize(0, 1, 40)
    assert (int(f.batch_slots[0]), int(f.kv_tokens[0]), int(f.usable_kv_tokens[0])) == (1, 40, 32)
    assert f.ledgers[0].n == 1
    assert f.period_s[0] == period_s
    assert f.fits(96)
    f.drain(1)
    assert not f.fits(33)
    with pytest.raises(ConfigError, match="batch_slots=0"):
        f.resize(0, 0, 40)


def test_leaving_closes_everything_and_nothing_comes_back() -> None:
    f = fleet()
    for i in range(3):
        f.open(Request(i, 0.0, 10), 0, 0)
    assert sorted(lease.request_id for lease in f.leave(0)) == [0, 1, 2]
    assert totals(f, 0) == (0, 0, 0, 0, 0)
    assert f.accepting() == [1]
    assert f.ledgers[0].status is Status.LEFT
    for act in (lambda: f.open(Request(9, 0.0, 1), 0, 0), lambda: f.drain(0), lambda: f.leave(0)):
        with pytest.raises(LedgerError, match="device 0 has left the fleet"):
            act()
    with pytest.raises(LedgerError, match="device 5 is unknown; the fleet has devices 0 to 1"):
        f.drain(5)


def test_a_draining_device_finishes_but_takes_nothing() -> None:
    f = fleet()
    f.open(Request(1, 0.0, 10), 0, 0)
    f.drain(0)
    assert f.accepting() == [1]
    with pytest.raises(LedgerError, match="device 0 is draining"):
        f.open(Request(2, 0.0, 10), 0, 0)
    f.start(1, prefilled=True)
    f.close(1)


def test_a_fleet_limited_to_some_devices_shares_all_leases() -> None:
    f = Fleet([Device("a", 4, 100), Device("b", 4, 300), Device("c", 4, 200)])
    f.drain(0)
    part = f.limited_to(np.array([0, 2]))
    assert (part.accepting(), part.largest_kv_tokens, part.members.tolist()) == ([2], 200, [0, 2])
    assert (f.accepting(), f.largest_kv_tokens, f.members.tolist()) == ([1, 2], 300, [0, 1, 2])
    part.open(Request(1, 0.0, 10), 2, 0)
    f.open(Request(2, 0.0, 10), 1, 0)
    assert totals(f, 2) == totals(part, 2) == (1, 1, 0, 11, 10)
    assert 2 in part
    f.close(1)
    assert 1 not in part
    assert part.open_leases.tolist() == [0, 1, 0]
    assert part.frozen().accepting() == [2]


def test_the_period_is_a_running_mean_of_iterations() -> None:
    f = fleet()
    before = f.period_s[0]
    f.advance(0, 1, 1.0)
    assert before < f.period_s[0] < 1.0
    f.advance(0, 10_000, 5000.0)
    assert f.period_s[0] == pytest.approx(0.5)
    assert f.ledgers[0].periods == 10_001


def test_several_periods_at_once_are_the_same_as_one_by_one() -> None:
    one, many = fleet(), fleet()
    for f in (one, many):
        f.open(Request(1, 0.0, 10), 0, 0)
        f.start(1, prefilled=True)
    for _ in range(7):
        one.advance(0, 1, 0.5)
    many.advance(0, 7, 3.5)
    assert np.array_equal(one.totals, many.totals)
    assert one.period_s[0] == pytest.approx(many.period_s[0])
