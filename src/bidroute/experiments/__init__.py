"""Experiments: from settings to runs, and from runs to a verdict. Reports and the command line build on it."""

from bidroute.experiments.bounding import add_bounds, scenario_bounds
from bidroute.experiments.comparison import compare
from bidroute.experiments.explaining import ExplainedRequest, explain
from bidroute.experiments.results import Comparison, Result
from bidroute.experiments.settings import ScenarioSettings
from bidroute.experiments.verdict import Verdict, judge
from bidroute.experiments.workers import Progress, cores

__all__ = [
    "Comparison",
    "ExplainedRequest",
    "Progress",
    "Result",
    "ScenarioSettings",
    "Verdict",
    "add_bounds",
    "compare",
    "cores",
    "explain",
    "judge",
    "scenario_bounds",
]
