"""The one place that says how numba kernels are compiled: cached on disk, with the GIL released."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` with numba: nopython, cached, GIL released, IEEE arithmetic (same seed, same run)."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(function))
