"""Built-in workloads: the published percentiles, bursts, seeds."""

from __future__ import annotations

import numpy as np
import pytest

from bidroute.errors import ConfigError
from bidroute.traces import SYNTHETIC, build_workload, load_trace
from bidroute.traces.arrivals import bursty_arrivals
from bidroute.traces.quantiles import FittedLengths

# name: (prompt p50, p90, p99, mean), (output p50, p90, p99, mean), requests, seconds, as published
PUBLISHED = {
    "azure-conv-like": ((1020, 2734, 4142, 1155), (129, 424, 601, 211), 19_366, 3502),
    "azure-code-like": ((1469, 5188, 7436, 2048), (13, 55, 251, 28), 8819, 3436),
    "reasoning-like": ((120, 1353, 20_070, 1075), (2018, 6885, 14_748, 2979), 47_022, 3600),
    "long-context-like": ((6909, 27_367, 85_400, 12_035), (350, 597, 1119, 343), 12_031, 3537),
}


def dispersion(arrival_s: np.ndarray, window_s: float) -> float:
    """Variance over mean of the arrivals per window; 1 for a Poisson process."""
    counts = np.bincount((arrival_s / window_s).astype(np.int64))
    return float(counts.var() / counts.mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", PUBLISHED)
def test_lengths_have_the_published_percentiles_and_means(name: str, seed: int) -> None:
    prompt, output, _, _ = PUBLISHED[name]
    workload = build_workload(name, 20_000, seed)
    for tokens, (p50, p90, p99, mean) in ((workload.prompt_tokens, prompt), (workload.output_tokens, output)):
        assert np.percentile(tokens, [50, 90, 99]) == pytest.approx([p50, p90, p99], rel=0.05)
        assert tokens.mean() == pytest.approx(mean, rel=0.07)
        assert tokens.min() >= 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_arrivals_have_the_natural_rate_and_bursts(name: str) -> None:
    _, _, requests, seconds = PUBLISHED[name]
    workload = build_workload(name, 20_000, 0)
    assert workload.arrival_s[0] == 0.0
    assert 19_999 / workload.arrival_s[-1] == pytest.approx(requests / seconds)
    assert dispersion(workload.arrival_s, 10.0) > 2.0
    assert dispersion(workload.arrival_s, 60.0) > 4.0


def test_the_code_workload_is_by_far_the_burstiest() -> None:
    by_name = {name: dispersion(build_workload(name, 20_000, 0).arrival_s, 10.0) for name in SYNTHETIC}
    assert by_name["azure-code-like"] > 3 * max(value for name, value in by_name.items() if "code" not in name)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_the_seed_decides_everything(name: str) -> None:
    first, again, other = (load_trace(f"builtin:{name}", requests=500, seed=seed) for seed in (7, 7, 8))
    for column in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(first, column), getattr(again, column))
        assert not np.array_equal(getattr(first, column), getattr(other, column))


@pytest.mark.parametrize("requests", [1, 2, 3, 17])
def test_any_number_of_requests(requests: int) -> None:
    for name in SYNTHETIC:
        assert len(build_workload(name, requests, 0)) == requests
    assert len(load_trace("builtin:reasoning-like")) == 10_000


def test_wrong_names_and_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose from: azure-conv-like"):
        build_workload("azure", 10, 0)
    with pytest.raises(ConfigError, match="expected 1 or more"):
        build_workload("reasoning-like", 0, 0)


# --- lengths --------------------------------------------------------------------------------------------------


def test_a_log_normal_is_reproduced_with_a_bend_of_one() -> None:
    """All five points and the mean of a log-normal with median 100 and σ = 0.5."""
    at = {level: 100 * np.exp(0.5 * z) for level, z in ((50, 0.0), (90, 1.281552), (99, 2.326348))}
    lengths = FittedLengths(
        shortest=round(100 * np.exp(-2)), p50=at[50], p90=at[90], p99=at[99], longest=round(100 * np.exp(2)),
        mean=100 * np.exp(0.125),
    )  # fmt: skip
    assert lengths.bend == pytest.approx(1.0, abs=0.02)
    assert lengths.quantile(np.array([0.158655, 0.841345])) == pytest.approx([60.65, 164.9], rel=0.01)


def test_quantiles_rise_from_the_shortest_to_the_longest() -> None:
    lengths = FittedLengths(shortest=3, p50=10, p90=100, p99=1000, longest=2000, mean=60)
    quantiles = lengths.quantile(np.linspace(0, 1, 2001))
    assert quantiles[[0, 1000, 1800, 1980, 2000]] == pytest.approx([3, 10, 100, 1000, 2000])
    assert np.all(np.diff(quantiles) > 0)


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not go with its percentiles"):
        FittedLengths(shortest=3, p50=10, p90=100, p99=1000, longest=2000, mean=5000)
    with pytest.raises(ConfigError, match="growing"):
        FittedLengths(shortest=3, p50=10, p90=9, p99=1000, longest=2000, mean=50)


# --- arrivals -------------------------------------------------------------------------------------------------


def test_without_variation_arrivals_are_poisson() -> None:
    times = bursty_arrivals(50_000, 4.0, 0.0, 10.0, np.random.default_rng(0))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.25, rel=1e-3)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    assert dispersion(times, 10.0) == pytest.approx(1.0, abs=0.15)


def test_dispersion_grows_as_a_doubly_stochastic_process_says() -> None:
    """Windows far shorter than an episode: variance over mean = 1 + variation² · mean."""
    times = bursty_arrivals(400_000, 20.0, 0.5, 50.0, np.random.default_rng(0))
    assert dispersion(times, 1.0) == pytest.approx(1 + 0.25 * 20, rel=0.15)


@pytest.mark.parametrize(("rate", "variation", "episode"), [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0)])
def test_impossible_arrivals_are_refused(rate: float, variation: float, episode: float) -> None:
    with pytest.raises(ConfigError, match="expected positive"):
        bursty_arrivals(10, rate, variation, episode, np.random.default_rng(0))
