"""The host loop of policies that release a request only when it can start (Timing.WHEN_STARTABLE)."""

from __future__ import annotations

from collections.abc import Sequence

from bidroute.errors import BidrouteError
from bidroute.policies.base import Assignment
from bidroute.simulator.host import Host
from bidroute.simulator.layout import FOREVER


def run_central(host: Host) -> None:
    """Arrivals wait in the router; each device is offered them at its own pass boundaries, when it has room.

    While nobody waits the devices run on to the next arrival; while somebody does, to the next boundary at which
    one of them has room. An idle device is asked again at each of these events.
    """
    engines, arrivals = host.engines, host.arrival_ns
    fleet, at, n = engines.fleet_size, 0, len(arrivals)
    while True:
        now_ns = min(arrivals[at] if at < n else FOREVER, host.next_change_ns())
        if host.waiting:
            now_ns = min(now_ns, engines.next_stop_ns())
        if now_ns == FOREVER:
            break
        host.pass_time(now_ns)
        host.change_fleet(now_ns)
        while at < n and arrivals[at] == now_ns:
            if not host.refused(at):
                host.enqueue(at, now_ns)
            at += 1
        engines.open(now_ns, 0, fleet)
        host.replay.apply_log()
        offer(host, now_ns)
        engines.launch(0, fleet)
        host.replay.apply_log()
    host.pass_time(FOREVER)


def offer(host: Host, now_ns: int) -> None:
    """Offer the queue to the devices whose open pass has room, and send what the policy releases."""
    if not host.waiting:
        return
    ready = host.engines.ready()
    if not ready:
        return
    assignments = host.decide(now_ns, ready)
    require_startable(host, ready, assignments)
    for assignment in assignments:
        host.send(assignment, now_ns)


def require_startable(host: Host, ready: Sequence[int], assignments: Sequence[Assignment]) -> None:
    """Raise BidrouteError when the policy released what cannot start now: it broke its contract."""
    fleet, name = host.controller.state.fleet, host.controller.policy.name
    asked: dict[int, int] = {}
    for assignment in assignments:
        if assignment.device not in ready:
            raise BidrouteError(
                f"policy {name} sent request {assignment.request_id} to device {assignment.device}; it was offered "
                f"{list(ready)}: release only to these"
            )
        prompt = host.scenario.workload.prompt_tokens[assignment.request_id]
        asked[assignment.device] = asked.get(assignment.device, 0) + int(prompt) + 1
    for device, tokens in asked.items():
        leases, slots = fleet.open_leases[device], fleet.batch_slots[device]
        used, capacity = fleet.kv_tokens_used[device], fleet.kv_tokens[device]
        if leases > slots or used + tokens > capacity:
            raise BidrouteError(
                f"policy {name} overfilled device {device}: {leases} requests for {slots} slots, {used} + {tokens} KV "
                f"tokens for {capacity}; release only what can start now"
            )
