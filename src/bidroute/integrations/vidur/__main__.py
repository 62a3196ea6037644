"""`python -m bidroute.integrations.vidur`: Vidur's own command, with our policies, replicas and execution times."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from bidroute.core.figures import Slo
from bidroute.errors import BidrouteError
from bidroute.integrations.vidur.installed import require_vidur

# Vidur's own defaults ask for 16 GPUs per replica, for profiling data from the network, and for a Chrome to draw with.
DEFAULTS = (
    "--replica_config_num_pipeline_stages=1",
    "--replica_config_tensor_parallel_size=1",
    "--replica_scheduler_config_type=sarathi",
    "--execution_time_predictor_config_type=bidroute_latency",
    "--no-metrics_config_store_plots",
    "--no-metrics_config_enable_chrome_trace",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one simulation, print its figures as a line of JSON; 2 with one line on stderr where it cannot be run."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        require_vidur()
        from bidroute.integrations.vidur.run import run
        from bidroute.integrations.vidur.setup import parse_options

        config = parse_options([*DEFAULTS, *given])
        slo = Slo(ttft_s=config.bidroute.ttft_slo_s, e2e_s=config.bidroute.e2e_slo_s)
        figures = run(config).summary(slo)
    except BidrouteError as problem:
        print(f"bidroute: {problem}", file=sys.stderr)
        return 2
    print(msgspec.json.encode(figures).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
