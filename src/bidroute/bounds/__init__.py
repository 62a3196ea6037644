"""Bounds that no schedule can cross: how far a policy is from the best anyone could do."""

from bidroute.bounds.lower import LowerBounds, lower_bounds
from bidroute.bounds.problem import Problem, problem_of
from bidroute.bounds.quick import quick_bound_s
from bidroute.bounds.reward import Worth, reward_bound

__all__ = ["LowerBounds", "Problem", "Worth", "lower_bounds", "problem_of", "quick_bound_s", "reward_bound"]
