"""The frontier: what settings of bid_price reach, which of them nothing beats, and which serve a stated goal."""

from bidroute.experiments.frontier.outcomes import FRONT_MEASURES, Outcome
from bidroute.experiments.frontier.sweep import SearchSettings, Sweep, preset_standings, sweep

__all__ = ["FRONT_MEASURES", "Outcome", "SearchSettings", "Sweep", "preset_standings", "sweep"]
