"""Every policy of the registry as a global scheduler of Vidur, under its own name.

Where Vidur has a scheduler of the same name (`random`, `round_robin`), ours is `bidroute_random` and so on.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import cache

from vidur.config.config import BaseGlobalSchedulerConfig
from vidur.scheduler.global_scheduler.global_scheduler_registry import GlobalSchedulerRegistry
from vidur.types import BaseIntEnum, GlobalSchedulerType

from bidroute.integrations.vidur.scheduler import PolicyScheduler
from bidroute.policies import policy_names

FIRST_VALUE = 100  # Vidur's own types are below


def vidur_name(policy: str) -> str:
    """What the policy of this name is called among Vidur's global schedulers."""
    taken = {str(own) for own in GlobalSchedulerType}
    return f"bidroute_{policy}" if policy in taken else policy


@cache
def register_policies() -> dict[str, type[BaseGlobalSchedulerConfig]]:
    """Let Vidur know every policy; returns its configuration class by Vidur's name for it.

    Policies that are registered later are not known to Vidur. The classes are kept, because Vidur finds them by what
    derives from its own.
    """
    policies = {vidur_name(policy): policy for policy in policy_names()}
    values = {name.upper(): FIRST_VALUE + place for place, name in enumerate(policies)}
    types = BaseIntEnum("PolicyType", values)
    configs = {}
    for name, policy in policies.items():
        member = types[name.upper()]
        GlobalSchedulerRegistry.register(member, PolicyScheduler)
        configs[name] = make_dataclass(
            f"PolicyConfig{member.value}",
            [],
            bases=(BaseGlobalSchedulerConfig,),
            namespace={"get_type": staticmethod(lambda member=member: member), "policy": policy},
        )
    return configs
