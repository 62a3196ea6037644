"""What a run records on request: a timeline sampled in simulated time, and explanations of single requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from bidroute.core.queue import FloatArray, IntArray
from bidroute.errors import ConfigError
from bidroute.policies.base import Explanation, Hold, Policy
from bidroute.pricing.prices import PriceSnapshot
from bidroute.simulator import layout
from bidroute.simulator.engines import NS_PER_S, Engines

NEAR_BUCKETS = 4  # prices are averaged over the first 1/NEAR_BUCKETS of the horizon's buckets


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """`timeline_interval_s` of simulated time between samples (None: no timeline); requests to explain."""

    timeline_interval_s: float | None = None
    explain_request_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        interval = self.timeline_interval_s
        if interval is not None and not (math.isfinite(interval) and interval > 0):
            raise ConfigError(f"timeline_interval_s={interval}; expected a positive number of seconds, or None")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Samples at `time_s` float64[T], G devices.

    `queue` int64[T] requests in the central queue; `pending` int64[T, G] in the engines' own queues; `slots_used`
    int64[T, G]; `kv_used` int64[T, G] in tokens of whole blocks; `slot_price`, `kv_price` and `token_price` float64[T,
    G], the mean over the nearest quarter of the price horizon (NaN without prices); `held` reason → int64[T], how often
    a request was held for it so far.
    """

    time_s: FloatArray
    queue: IntArray
    pending: IntArray
    slots_used: IntArray
    kv_used: IntArray
    slot_price: FloatArray
    kv_price: FloatArray
    token_price: FloatArray
    held: dict[str, IntArray]


@dataclass(slots=True)
class Recorder:
    """Takes the samples and explanations that the options ask for."""

    options: RecordOptions
    policy: Policy
    engines: Engines
    held: dict[str, int]
    explanations: list[Explanation] = field(default_factory=list)
    _rows: list[tuple[float, int, IntArray, FloatArray, dict[str, int]]] = field(default_factory=list)

    def next_sample_ns(self) -> int:
        """When the next sample is due; FOREVER without a timeline."""
        if self.options.timeline_interval_s is None:
            return layout.FOREVER
        return round(len(self._rows) * self.options.timeline_interval_s * NS_PER_S)

    def sample(self, now_ns: int, queue_length: int) -> None:
        """Record the engines as they stand."""
        engines, fleet = self.engines, slice(0, self.engines.fleet_size)
        rows = engines.devices[fleet]
        used_blocks = engines.total_blocks[fleet] - rows[:, layout.D_FREE]
        kv_used = used_blocks * rows[:, layout.D_BLOCK_SIZE]
        usage = np.stack([rows[:, layout.D_QUEUED], rows[:, layout.D_RUNNING], kv_used])
        prices = near_prices(self.policy.prices(), engines.fleet_size)
        self._rows.append((now_ns / NS_PER_S, queue_length, usage, prices, dict(self.held)))

    def timeline(self) -> Timeline | None:
        """The samples taken; None without a timeline."""
        if self.options.timeline_interval_s is None:
            return None
        times, queues, usages, prices, held = zip(*self._rows, strict=True)
        usage, price = np.stack(usages), np.stack(prices)
        return Timeline(
            np.array(times),
            np.array(queues, dtype=np.int64),
            usage[:, 0],
            usage[:, 1],
            usage[:, 2],
            price[:, 0],
            price[:, 1],
            price[:, 2],
            {str(reason): np.array([row.get(reason, 0) for row in held], dtype=np.int64) for reason in Hold},
        )


def near_prices(snapshot: PriceSnapshot | None, fleet_size: int) -> FloatArray:
    """Slot, KV and token price per device, averaged over the nearest quarter of the horizon; float64[3, G], NaN if
    there are none."""
    mean = np.full((3, fleet_size), np.nan)  # devices that have not joined yet have no prices
    if snapshot is None:
        return mean
    near = max(1, snapshot.slot_price.shape[1] // NEAR_BUCKETS)
    widths = np.diff(snapshot.edges_periods)[:near].astype(np.float64)
    for row, prices in zip(mean, (snapshot.slot_price, snapshot.kv_price, snapshot.token_price), strict=True):
        if prices is not None:
            row[: len(prices)] = prices[:, :near] @ widths / widths.sum()
    return mean
