"""Routing policies: the contract (`base`), the registry, the controller that hosts drive, and the policies.

Adding a policy takes one file here: every module of this package is imported below, and registers what it holds.
"""

from importlib import import_module
from pkgutil import iter_modules

from bidroute.policies.base import Assignment, Decision, Explanation, Hold, Policy, Timing
from bidroute.policies.controller import Controller
from bidroute.policies.registry import PolicySettings, build_policy, compared_names, policy_names, register

for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")

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
    "compared_names",
    "policy_names",
    "register",
]
