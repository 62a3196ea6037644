"""A controller put through a short life, so that whatever a decision needs is compiled before it counts."""

from __future__ import annotations

from bidroute.core.requests import Request
from bidroute.policies.controller import Controller

_PERIOD_S = 0.1
_MOST_PERIODS = 60


def exercise(controller: Controller, requests: int = 2) -> None:
    """Queue, decide, run and end this many small requests, on frozen states where lengths are learned beside it."""
    state = controller.state
    for request_id in range(requests):
        now_s = request_id * _PERIOD_S
        controller.enqueue(now_s, Request(request_id, now_s, prompt_tokens=10, max_tokens=50))
    for period in range(requests, _MOST_PERIODS):
        now_s = period * _PERIOD_S
        controller.update(now_s, state.frozen() if controller.learn_on_update else None)
        for assignment in controller.decide(now_s, state.fleet.accepting()).assignments:
            controller.started(assignment.request_id, prefilled=False)
            controller.prefilled(assignment.request_id, 1)
        for device, ledger in enumerate(state.fleet.ledgers):
            controller.advanced(device, 1, _PERIOD_S)
            for request_id in ledger.ids.tolist():
                controller.finished(now_s, request_id, 2)
        if not len(state.queue):
            return
