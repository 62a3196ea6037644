"""Routing policies: the contract (`base`), the registry, the controller that hosts drive, and the policies."""

from bidroute.policies.base import Assignment, Decision, Explanation, Hold, Policy, Timing
from bidroute.policies.controller import Controller
from bidroute.policies.registry import PolicySettings, build_policy, policy_names, register

__all__ = [
    "Assignment",
    "Controller",
    "Decision",
    "Explanation",
    "Hold",
    "Policy",
    "PolicySettings",
    "Timing",
    "build_policy",
    "policy_names",
    "register",
]
