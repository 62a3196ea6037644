"""Carries what the engines logged to the controller, in order of time, so that its ledger follows them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bidroute.policies.controller import Controller
from bidroute.simulator import layout
from bidroute.simulator.engines import NS_PER_S, Engines


class Replay:
    """`handed_off` collects (request, prefill worker row) until the host takes them; `on_start` hears every join."""

    def __init__(self, controller: Controller, engines: Engines, *, starts_prefilled: bool) -> None:
        self.controller = controller
        self.engines = engines
        self.starts_prefilled = starts_prefilled
        self.handed_off: list[tuple[int, int]] = []
        self.on_start: Callable[[int], None] | None = None
        self._passes_now = engines.devices[: engines.fleet_size, layout.D_PASSES]  # a view
        self._passes = np.zeros(engines.fleet_size, dtype=np.int64)
        self._busy_ns = np.zeros(engines.fleet_size, dtype=np.int64)
        engines.on_full_log = self.run

    def run(self) -> None:
        """After time has passed: apply everything logged, then bring every device's periods up to date."""
        self.apply_log()
        rows = self.engines.devices
        for device in (self._passes_now != self._passes).nonzero()[0].tolist():
            self._advance(device, int(rows[device, layout.D_PASSES]), int(rows[device, layout.D_BUSY]))

    def apply_log(self) -> None:
        """After passes were opened or launched, with no time passed: apply everything logged."""
        if self.engines.log[0, 0] == 0:
            return
        entries = self.engines.logged().tolist()
        self.engines.clear_log()
        for kind, request, device, passes, time_ns, busy_ns in entries:
            self._apply(kind, request, device, passes, time_ns, busy_ns)

    def _apply(self, kind: int, request: int, device: int, passes: int, time_ns: int, busy_ns: int) -> None:
        if device >= self.engines.fleet_size:
            if kind == layout.HANDED_OFF:
                self.handed_off.append((request, device))
            return
        self._advance(device, passes, busy_ns)
        if kind == layout.STARTED:
            self.controller.started(request, prefilled=self.starts_prefilled)
            if self.on_start is not None:
                self.on_start(request)
        elif kind == layout.PREFILLED:
            self.controller.prefilled(request, 1)
        elif kind == layout.PREEMPTED:
            self.controller.preempted(request)
        else:
            output_tokens = int(self.engines.requests[request, layout.R_OUTPUT])
            self.controller.finished(time_ns / NS_PER_S, request, output_tokens)

    def _advance(self, device: int, passes: int, busy_ns: int) -> None:
        periods = passes - int(self._passes[device])
        if periods > 0:
            duration_s = (busy_ns - int(self._busy_ns[device])) / NS_PER_S
            self._passes[device], self._busy_ns[device] = passes, busy_ns
            self.controller.advanced(device, periods, duration_s)
