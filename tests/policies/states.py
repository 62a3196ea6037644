"""Small states for policy tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet
from bidroute.core.lengths import LengthModel
from bidroute.core.queue import WaitingQueue
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState

MODEL = LengthModel(classes=2)
FIRST_LEASE = 1000  # ids of leases; waiting requests count from 0


def state(
    devices: Sequence[Device],
    waiting: Iterable[tuple[int, int, int]] = (),
    leases: Iterable[tuple[int, int, int, int, int]] = (),
    arrival_s: Sequence[float] = (),
    prefilling: Iterable[tuple[int, int, int, int, int]] = (),
) -> RoutingState:
    """`waiting`: (prompt, class, exact); `leases`: (device, prompt, decoded, class, exact), decoding; `prefilling`:
    (device, prompt, tokens of it processed, class, exact)."""
    made = RoutingState(WaitingQueue(), Fleet(list(devices)), MODEL)
    for i, (prompt, length_class, exact) in enumerate(waiting):
        made.queue.add(Request(i, arrival_s[i] if arrival_s else float(i), prompt), length_class, exact)
    for i, (device, prompt, decoded, length_class, exact) in enumerate(leases, start=FIRST_LEASE):
        made.fleet.open(Request(i, 0.0, prompt), device, length_class, exact)
        made.fleet.start(i, prefilled=True)
        made.fleet.progress(i, decoded)
    for i, (device, prompt, processed, length_class, exact) in enumerate(prefilling, start=2 * FIRST_LEASE):
        made.fleet.open(Request(i, 0.0, prompt), device, length_class, exact)
        made.fleet.start(i, prefilled=False)
        made.fleet.pool.columns[6, made.fleet.pool.offset[device] + made.fleet.locate(i)[1]] = processed
    return made
