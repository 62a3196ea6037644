"""The time grid that prices live on: buckets of periods, always measured from now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.core.queue import IntArray
from bidroute.errors import ConfigError

MAX_BUCKETS = 64


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """Buckets [edges[b], edges[b+1]) of periods from now; `edges_periods` int64[buckets+1] starts at 0.

    Beyond the last edge the last bucket's price holds. Bucket b always means the same distance from now, so a
    device's prices move with its clock by staying where they are (a warm start).
    """

    edges_periods: IntArray

    def __post_init__(self) -> None:
        edges = self.edges_periods
        if len(edges) < 2 or len(edges) > MAX_BUCKETS + 1:
            raise ConfigError(f"time grid: {len(edges) - 1} buckets; expected 1 to {MAX_BUCKETS}")
        if edges[0] != 0 or np.any(np.diff(edges) < 1):
            raise ConfigError("time grid: edges must start at 0 and increase")

    @classmethod
    def uniform(cls, horizon_periods: int, buckets: int) -> TimeGrid:
        """`buckets` buckets of (almost) equal width up to `horizon_periods`."""
        _require_extent(horizon_periods, buckets)
        return cls(np.unique(np.linspace(0, horizon_periods, buckets + 1).round().astype(np.int64)))

    @classmethod
    def geometric(cls, horizon_periods: int, buckets: int) -> TimeGrid:
        """At most `buckets` buckets whose widths grow geometrically, from single periods to the horizon."""
        _require_extent(horizon_periods, buckets)
        ratio = float(horizon_periods) ** (1.0 / buckets)
        edges = np.concatenate([[0], np.round(ratio ** np.arange(1, buckets + 1))]).astype(np.int64)
        return cls(np.unique(edges))

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return len(self.edges_periods) - 1

    @property
    def widths_periods(self) -> IntArray:
        """Width of each bucket in periods, int64[buckets]."""
        return np.diff(self.edges_periods)

    @property
    def horizon_periods(self) -> int:
        """The last edge."""
        return int(self.edges_periods[-1])


def _require_extent(horizon_periods: int, buckets: int) -> None:
    if horizon_periods < 1 or not 1 <= buckets <= MAX_BUCKETS:
        raise ConfigError(
            f"time grid: {buckets} buckets over {horizon_periods} periods; expected 1 to {MAX_BUCKETS} buckets over "
            "1 period or more"
        )
