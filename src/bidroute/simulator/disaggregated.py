"""The host loop of disaggregated clusters: prefill workers hand requests over to the decode devices.

Prefill workers take arrivals round robin. At the hand-off a request enters the router, which picks its decode
device. The prompt's KV stays on the prefill worker until the request joins its first decode pass, so slow decode
devices hold the prefill workers back.
"""

from __future__ import annotations

import numpy as np

from bidroute.simulator import layout
from bidroute.simulator.central import offer
from bidroute.simulator.dispatch import dispatch
from bidroute.simulator.host import Host
from bidroute.simulator.layout import FOREVER
from bidroute.simulator.result import Outcome


def run_disaggregated(host: Host) -> None:
    """Events are arrivals, ends of prefills and, where somebody waits for them, boundaries of decode devices."""
    loop = _Loop(host)
    while (now_ns := loop.next_event_ns()) < FOREVER:
        loop.step(now_ns)
    host.pass_time(FOREVER)


class _Loop:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.engines = host.engines
        self.fleet = host.engines.fleet_size
        self.arrived = 0
        self.dispatched = 0
        self.holder = np.full(len(host.arrival_ns), -1, dtype=np.int64)  # prefill row that holds the prompt's KV
        host.replay.on_start = self._release
        prompt_blocks = -(-host.scenario.workload.prompt_tokens // self.engines.devices[-1, layout.D_BLOCK_SIZE])
        host.status[prompt_blocks > self.engines.total_blocks[-1]] = Outcome.REFUSED

    def next_event_ns(self) -> int:
        """When something happens next that the host must act on."""
        arrivals = self.host.arrival_ns
        now_ns = arrivals[self.arrived] if self.arrived < len(arrivals) else FOREVER
        now_ns = min(now_ns, self.engines.next_prefill_end_ns())
        if self.host.waiting or self._held_back():
            now_ns = min(now_ns, self.engines.next_stop_ns())
        return now_ns

    def step(self, now_ns: int) -> None:
        """Act on everything that happens at this instant: prefills first, then the decode devices."""
        host, engines = self.host, self.engines
        host.pass_time(now_ns)
        self._take_arrivals(now_ns)
        self._start_prefills(now_ns)
        while engines.next_prefill_end_ns() == now_ns:  # prefills that take no time
            engines.advance(now_ns, self.fleet, engines.rows)
            host.replay.apply_log()
            self._start_prefills(now_ns)
        self._hand_over(now_ns)
        engines.open(now_ns, 0, self.fleet)
        host.replay.apply_log()
        if not host.controller.dispatches_on_arrival:
            offer(host, now_ns)
        engines.launch(0, self.fleet)
        host.replay.apply_log()
        self._start_prefills(now_ns)  # KV may have become free

    def _held_back(self) -> bool:
        """Whether a prefill worker stands still although somebody waits there: for KV that decode devices free."""
        rows = self.engines.devices[self.fleet :]
        return bool(np.any((rows[:, layout.D_STATE] != layout.RUNNING) & (rows[:, layout.D_QUEUED] > 0)))

    def _take_arrivals(self, now_ns: int) -> None:
        arrivals = self.host.arrival_ns
        while self.arrived < len(arrivals) and arrivals[self.arrived] == now_ns:
            if not self.host.refused(self.arrived):
                row = self.fleet + self.dispatched % self.host.scenario.prefill_workers
                self.dispatched += 1
                self.engines.push(row, self.arrived, now_ns)
                self.holder[self.arrived] = row
            self.arrived += 1

    def _start_prefills(self, now_ns: int) -> None:
        self.engines.open(now_ns, self.fleet, self.engines.rows)
        self.engines.launch(self.fleet, self.engines.rows)

    def _hand_over(self, now_ns: int) -> None:
        handed_off, self.host.replay.handed_off = self.host.replay.handed_off, []
        for request, _ in handed_off:
            self.host.enqueue(request, now_ns)
            if self.host.controller.dispatches_on_arrival:
                dispatch(self.host, now_ns)
                if self.host.refused(request):
                    self._release(request)

    def _release(self, request: int) -> None:
        row = int(self.holder[request])
        if row >= 0:
            self.engines.release_prompt(row, request)
            self.holder[request] = -1
