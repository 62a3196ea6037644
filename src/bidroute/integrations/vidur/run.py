"""One run in Vidur, from a configuration."""

from __future__ import annotations

from vidur.utils.random import set_seeds

from bidroute.integrations.vidur.options import BidrouteSimulationConfig
from bidroute.integrations.vidur.results import VidurRun, collect
from bidroute.integrations.vidur.simulation import Simulation
from bidroute.traces.workload import Workload


def run(config: BidrouteSimulationConfig, workload: Workload | None = None) -> VidurRun:
    """Simulate the configured requests, or those of `workload`, to their end (or to Vidur's time limit)."""
    set_seeds(config.seed)
    simulation = Simulation(config, workload)
    simulation.run()
    return collect(simulation)
