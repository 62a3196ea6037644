import os
import subprocess
import sys

NEW = """
import sys
from numba.core.dispatcher import Dispatcher
from bidroute.experiments import ScenarioSettings, compare, warm_up

def in_use():
    ours = [module for name, module in sys.modules.items() if name.startswith("bidroute")]
    kernels = [value for module in ours for value in vars(module).values() if isinstance(value, Dispatcher)]
    return {kernel.__name__ for kernel in kernels if kernel.signatures}

for part in warm_up.PARTS:
    part()
before = in_use()
compare(ScenarioSettings(requests=60), ["bid_price", "fifo+safety", "join_shortest_queue"], seeds=1)
print(*sorted(in_use() - before))
"""


def test_a_comparison_needs_nothing_large_that_was_not_compiled_ahead():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run([sys.executable, "-c", NEW], capture_output=True, text=True, env=environment, check=True)
    # Small ones, and parts of the large ones that are also called by themselves.
    assert set(process.stdout.split()) <= {"decode_ns", "prefill_ns", "change_row", "count_row"}
