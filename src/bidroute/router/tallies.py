"""Counters, gauges and histograms that cost little per event, for a router that lives on one event loop.

prometheus-client's own take a lock and several lookups per event, which at thousands of requests per second is a
fifth of a request's CPU. These are plain numbers; they become Prometheus families when the page is asked for. They
must only be touched from one thread.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class CounterTally(Collector):
    """A counter with as many labels as were named; a series starts at its first event, one without labels at 0."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count `amount` more for these labels, given in the order in which they were named."""
        values = self._values
        values[labels] = values.get(labels, 0.0) + amount

    def collect(self) -> Iterator[Metric]:
        """The family, for the registry."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class GaugeTally(Collector):
    """A gauge with as many labels as were named."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._values: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def set(self, value: float, *labels: str) -> None:
        """Set the value for these labels, given in the order in which they were named."""
        self._values[labels] = value

    def clear(self) -> None:
        """Forget every series."""
        self._values.clear()

    def collect(self) -> Iterator[Metric]:
        """The family, for the registry."""
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class HistogramTally(Collector):
    """A histogram without labels; `bounds` are its buckets' upper edges, rising. What is no number is left out."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Take in one value."""
        if math.isfinite(value):
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def collect(self) -> Iterator[Metric]:
        """The family, for the registry: counts up to each edge."""
        below, buckets = 0, []
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            below += count
            buckets.append((repr(float(bound)) if math.isfinite(bound) else "+Inf", float(below)))
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric((), buckets, self._sum)
        yield family
