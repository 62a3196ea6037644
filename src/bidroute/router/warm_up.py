"""Compile what a decision needs before the first request comes: on a fresh machine that takes many seconds."""

from __future__ import annotations

from bidroute.core.devices import Device
from bidroute.core.requests import Request
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, PolicySettings, build_policy
from bidroute.policies.exercise import exercise
from bidroute.router.settings import RouterSettings


def compile_kernels(settings: RouterSettings) -> None:
    """Decide, and explain, for a tiny fleet of two unlike devices. Raises ConfigError for wrong settings."""
    policy = build_policy(settings.policy, PolicySettings(settings.seed, settings.objective))
    devices = [Device("a", 2, 2_000, 16), Device("b", 2, 1_000, 16, period_s=0.05)]
    controller = Controller(policy, devices, build_predictor(settings.lengths), learn_on_update=True)
    exercise(controller, requests=8)
    controller.enqueue(9.0, Request(9, 9.0, prompt_tokens=10))
    policy.explain(9.0, controller.state, controller.state.fleet.accepting(), [9])
