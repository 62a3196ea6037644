"""Compile what a decision needs before the first request comes: on a fresh machine that takes many seconds."""

from __future__ import annotations

from bidroute.core.devices import Device
from bidroute.core.requests import Request
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, PolicySettings, build_policy
from bidroute.router.settings import RouterSettings

_LIFE_TOKENS = 12


def compile_kernels(settings: RouterSettings) -> None:
    """Run a tiny fleet of two unlike devices through a few decisions. Raises ConfigError for wrong settings."""
    policy = build_policy(settings.policy, PolicySettings(settings.seed, settings.objective))
    devices = [Device("a", 2, 2_000, 16), Device("b", 2, 1_000, 16, period_s=0.05)]
    controller = Controller(policy, devices, build_predictor(settings.lengths), learn_on_update=True)
    for request_id in range(8):
        controller.enqueue(0.1 * request_id, Request(request_id, 0.1 * request_id, 100, 50))
    for step in range(1, 60):
        now_s = step * 0.1
        controller.update(now_s, controller.state.frozen())
        fleet = controller.state.fleet
        for assignment in controller.decide(now_s, fleet.accepting()).assignments:
            controller.started(assignment.request_id, prefilled=False)
            controller.prefilled(assignment.request_id, 1)
            controller.progressed(assignment.request_id, _LIFE_TOKENS // 2)
            fleet.observe_pace(assignment.device, 8, 0.1)
        policy.explain(now_s, controller.state, fleet.accepting(), controller.state.queue.ids.tolist())
        for ledger in fleet.ledgers:
            for request_id in ledger.ids.tolist()[:1]:
                controller.finished(now_s, request_id, _LIFE_TOKENS)
        if not len(controller.state.queue) and not fleet.open_leases.any():
            break
