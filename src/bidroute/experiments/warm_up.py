"""Compiling kernels ahead of the runs, in parts that share nothing, so that no two processes compile the same.

Numba keeps what is compiled on disk; where it is there already, these take a moment.
"""

from __future__ import annotations

import numpy as np

from bidroute.core.devices import Device
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, build_policy
from bidroute.policies.exercise import exercise
from bidroute.simulator import Scenario, affine_decode
from bidroute.simulator.engines import Engines
from bidroute.simulator.layout import FOREVER
from bidroute.traces import Workload

_DEVICE = Device("warm-up", 4, 1000)


def compile_engines() -> None:
    """What every simulated run needs of the engines."""
    one = np.ones(1, dtype=np.int64)
    engines = Engines(Scenario(Workload("warm-up", np.zeros(1), one, one), (_DEVICE,), affine_decode(1e-3, 0.0, 0.0)))
    engines.push(0, 0, 0)
    engines.open(0, 0, 1)
    engines.ready()
    engines.launch(0, 1)
    engines.next_stop_ns()
    engines.advance(FOREVER)


def compile_decisions() -> None:
    """The ledger, the length model, prices and both kinds of decision from a central queue."""
    for policy in ("bid_price", "fifo+safety"):
        controller = Controller(build_policy(policy), [_DEVICE], build_predictor("none"))
        exercise(controller)


PARTS = (compile_engines, compile_decisions)
