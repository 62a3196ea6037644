"""The host loops of policies that dispatch on arrival (Timing.ON_ARRIVAL): engines keep queues of their own."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import BidrouteError
from bidroute.policies.base import Policy
from bidroute.simulator import layout
from bidroute.simulator.host import Host, mean_us
from bidroute.simulator.layout import FOREVER
from bidroute.simulator.result import Outcome


def run_dispatch(host: Host) -> None:
    """At each arrival the ledger is brought up to date, the policy chooses, and the engine queues the request."""
    for request, now_ns in enumerate(host.arrival_ns):
        _pass_changes(host, now_ns)
        host.pass_time(now_ns)
        if not host.refused(request):
            host.enqueue(request, now_ns)
            dispatch(host, now_ns)
    _pass_changes(host, FOREVER - 1)
    host.pass_time(FOREVER)


def _pass_changes(host: Host, until_ns: int) -> None:
    """Let time pass over the changes of the fleet until then; what was on a device that is lost is dispatched anew."""
    while (now_ns := host.next_change_ns()) <= until_ns:
        host.pass_time(now_ns)
        host.change_fleet(now_ns)
        if host.waiting:
            dispatch(host, now_ns)


def dispatch(host: Host, now_ns: int) -> None:
    """Ask the policy where each request in the queue goes, and send it there."""
    assignments = host.decide(now_ns, host.controller.state.fleet.accepting())
    if host.waiting:
        name = host.controller.policy.name
        raise BidrouteError(f"policy {name} dispatches on arrival but left {host.waiting} requests in the queue")
    for assignment in assignments:
        host.send(assignment, now_ns)


def run_blindly(host: Host) -> FloatArray | None:
    """The fast path: devices chosen without looking, each run to its end in one go; None if the policy must look.

    Returns the time per decision in microseconds, float64[1].
    """
    engines = host.engines
    accepted = np.flatnonzero(host.status != Outcome.REFUSED)
    before = perf_counter()
    chosen = host.controller.policy.choose_blindly(len(accepted), host.controller.state)
    decision_us = mean_us(perf_counter() - before, len(accepted))
    if chosen is None:
        return None
    _require_devices(host.controller.policy, chosen, len(accepted), engines.fleet_size)
    host.device[accepted] = chosen
    host.queued_ns[accepted] = engines.requests[accepted, layout.R_READY]  # their arrivals
    lost = accepted[~host.can_complete[accepted, chosen]]
    host.status[lost] = Outcome.REFUSED
    for device in range(engines.fleet_size):
        engines.link(device, np.flatnonzero((host.device == device) & (host.status != Outcome.REFUSED)))
    engines.stop_logging()
    engines.advance(FOREVER)
    return decision_us


def _require_devices(policy: Policy, chosen: IntArray, count: int, devices: int) -> None:
    if len(chosen) != count or np.any((chosen < 0) | (chosen >= devices)):
        raise BidrouteError(
            f"policy {policy.name}: choose_blindly gave {len(chosen)} choices for {count} requests on {devices} "
            "devices; expected one device index each"
        )
