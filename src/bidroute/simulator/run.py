"""`simulate`: run one policy on one scenario."""

from __future__ import annotations

from time import perf_counter, process_time

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.lengths.base import LengthPredictor
from bidroute.policies.base import Policy
from bidroute.simulator import layout
from bidroute.simulator.central import run_central
from bidroute.simulator.disaggregated import run_disaggregated
from bidroute.simulator.dispatch import run_blindly, run_dispatch
from bidroute.simulator.engines import NS_PER_S
from bidroute.simulator.host import Host
from bidroute.simulator.recording import RecordOptions
from bidroute.simulator.result import Outcome, RunResult
from bidroute.simulator.scenario import Scenario


def simulate(
    scenario: Scenario,
    policy: Policy,
    predictor: LengthPredictor,
    *,
    predicted_tokens: FloatArray | None = None,
    record: RecordOptions | None = None,
) -> RunResult:
    """Run the workload to its end under the policy; the same arguments give the same run, bit for bit.

    Policy and predictor must be fresh: they learn during the run. `predicted_tokens` float64[n] goes into the
    requests as their point predictions. A policy that answers `choose_blindly` is run on the fast path, unless
    a recording asks for more; the results are the same. Raises ConfigError where sizes do not match, and
    BidrouteError where the policy breaks its contract.
    """
    wall_s, cpu_s = perf_counter(), process_time()
    host = Host(scenario, policy, predictor, predicted_tokens, record or RecordOptions())
    decision_us = None
    simple = record is None and scenario.mode != "disaggregated" and not scenario.changes
    if host.controller.dispatches_on_arrival and simple:
        decision_us = run_blindly(host)
    if decision_us is None:
        _run_looking(host)
        decision_us = np.array(host.decision_us)
    return _result(host, decision_us, perf_counter() - wall_s, process_time() - cpu_s)


def _run_looking(host: Host) -> None:
    if host.scenario.mode == "disaggregated":
        run_disaggregated(host)
    elif host.controller.dispatches_on_arrival:
        run_dispatch(host)
    else:
        run_central(host)


def _result(host: Host, decision_us: FloatArray, wall_s: float, cpu_s: float) -> RunResult:
    requests = host.engines.requests
    end_s = _seconds(requests[:, layout.R_END])
    status = np.where(np.isnan(end_s), host.status, Outcome.FINISHED)
    return RunResult(
        policy=host.controller.policy.name,
        arrival_s=np.array(host.arrival_ns) / NS_PER_S,
        queued_s=_seconds(host.queued_ns),
        start_s=_seconds(requests[:, layout.R_START]),
        first_token_s=_seconds(requests[:, layout.R_FIRST]),
        end_s=end_s,
        device=np.where(status == Outcome.FINISHED, host.device, -1),
        preemptions=requests[:, layout.R_PREEMPTIONS].copy(),
        status=status,
        prompt_tokens=host.scenario.workload.prompt_tokens,
        output_tokens=host.scenario.workload.output_tokens,
        wasted_tokens=int(host.engines.devices[:, layout.D_WASTED].sum()),
        decision_us=decision_us,
        update_us=np.array(host.update_us),
        held=host.held,
        wall_s=wall_s,
        cpu_s=cpu_s,
        timeline=host.recorder.timeline(),
        explanations=host.recorder.explanations,
    )


def _seconds(times_ns: IntArray) -> FloatArray:
    """Nanoseconds to seconds, NaN where it never happened."""
    return np.where(times_ns == layout.NEVER, np.nan, times_ns / NS_PER_S)
