"""Bursty arrivals: a Poisson process whose rate itself is random (doubly stochastic)."""

from __future__ import annotations

import numpy as np

from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError


def bursty_arrivals(
    count: int, rate_per_s: float, rate_variation: float, episode_s: float, random: np.random.Generator
) -> FloatArray:
    """Arrival times in seconds, float64[count], from 0 on, at a mean rate of exactly `rate_per_s`.

    Time is a chain of episodes, exponential with mean `episode_s`; in each the rate is `rate_per_s` times a
    gamma variable with mean 1 and standard deviation `rate_variation` (0: an ordinary Poisson process). In the
    end times are stretched by a constant so that the workload spans (count−1)/rate_per_s: a short workload would
    otherwise be far busier under one seed than under another.
    """
    if min(rate_per_s, episode_s) <= 0 or rate_variation < 0:
        raise ConfigError(
            f"arrivals at {rate_per_s}/s, variation {rate_variation}, episodes of {episode_s} s; expected positive"
        )
    expected = np.cumsum(random.exponential(1.0, count))  # the process in units of expected arrivals
    ends_s, ends_expected = _episodes(float(expected[-1]), rate_per_s, rate_variation, episode_s, random)
    times_s: FloatArray = np.interp(expected, ends_expected, ends_s)
    times_s -= times_s[0]
    if count > 1 and times_s[-1] > 0:
        times_s *= (count - 1) / rate_per_s / times_s[-1]
    return times_s


def _episodes(
    expected: float, rate_per_s: float, rate_variation: float, episode_s: float, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Ends of the episodes in seconds and in expected arrivals since the start, until `expected` have come."""
    shape = 1.0 / max(rate_variation, 1e-6) ** 2
    batch = 16 + int(expected / (rate_per_s * episode_s))
    ends_s, ends_expected = np.zeros(1), np.zeros(1)
    while ends_expected[-1] < expected:
        lasting_s = random.exponential(episode_s, batch)
        arriving = lasting_s * rate_per_s * random.gamma(shape, 1.0 / shape, batch)
        ends_s = np.append(ends_s, ends_s[-1] + np.cumsum(lasting_s))
        ends_expected = np.append(ends_expected, ends_expected[-1] + np.cumsum(arriving))
    return ends_s, ends_expected
