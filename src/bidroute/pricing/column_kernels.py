"""Numba kernel of the columns: running sums of survival functions."""

from __future__ import annotations

from bidroute._kernels import kernel
from bidroute.core.queue import FloatArray


@kernel
def running_sums(survival: FloatArray, tokens: FloatArray, growth: FloatArray) -> None:
    """Σ_{θ<x} S_c(θ) and Σ_{θ<x} S_c(θ)(θ+1) for x = 0 … horizon+1; overwrites both, [c, horizon+2]."""
    for c in range(survival.shape[0]):
        slots, held = 0.0, 0.0
        tokens[c, 0], growth[c, 0] = 0.0, 0.0
        for age in range(survival.shape[1]):
            slots += survival[c, age]
            held += survival[c, age] * (age + 1.0)
            tokens[c, age + 1], growth[c, age + 1] = slots, held
