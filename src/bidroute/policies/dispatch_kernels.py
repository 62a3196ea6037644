"""Compiled sum of the predicted remaining work per device."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray, IntArray


@kernel
def remaining_work(
    columns: IntArray,
    offset: IntArray,
    counts: IntArray,
    devices: IntArray,
    mean_residual: FloatArray,
    work: FloatArray,
) -> None:
    """work[d] = Σ over the open leases of devices[d] of the output tokens they are expected to make still.

    `columns`, `offset`, `counts` are the lease pool's; `mean_residual` float64[classes, horizon+1]; `work` [D].
    """
    last = mean_residual.shape[1] - 1
    for d in range(len(devices)):
        start, total = offset[devices[d]], 0.0
        for row in range(start, start + counts[devices[d]]):
            decoded, exact = columns[2, row], columns[4, row]
            if exact > 0:
                total += max(exact - decoded, 1)
            else:
                total += mean_residual[columns[3, row], min(decoded, last)]
        work[d] = total
