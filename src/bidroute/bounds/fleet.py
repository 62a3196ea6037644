"""What a bound needs of a fleet: for each kind of device an affine lower estimate of its iterations, and capacities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bidroute.core.devices import Device
from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.simulator.latency import NS_PER_S, DecodeLatency
from bidroute.simulator.latency_kernels import AFFINE

ROUNDING_S = 0.5e-9  # iterations are rounded to whole nanoseconds


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """`count` devices alike. An iteration of n requests that hold K tokens (`s + θ + 1` each) takes at least
    `base_s + slot_s·n + token_s·K` seconds, and never more than `longest_s`."""

    count: int
    base_s: float
    slot_s: float
    token_s: float
    batch_slots: int
    kv_tokens: int
    longest_s: float

    def revenue(
        self, rho: FloatArray, kappa: FloatArray, holding: float, fewest_kv: float, most_kv: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The most that one device earns per second at each price, and the tokens, and KV held by them, of that.

        A batch of n that holds K earns (n·ρ + K·κ) per iteration and pays `holding`·n per second. Every request holds
        between `fewest_kv` and `most_kv`. All arrays float64[cells].
        """
        best, tokens, held = (np.zeros_like(rho) for _ in range(3))
        for n, kv in self._candidates(rho, kappa, holding, fewest_kv, most_kv):
            iteration_s = self.base_s + self.slot_s * n + self.token_s * kv
            earned = (n * rho + kv * kappa) / iteration_s - holding * n
            better = earned > best
            best = np.where(better, earned, best)
            tokens = np.where(better, n / iteration_s, tokens)
            held = np.where(better, kv / iteration_s, held)
        return best, tokens, held

    def _candidates(
        self, rho: FloatArray, kappa: FloatArray, holding: float, fewest_kv: float, most_kv: float
    ) -> list[tuple[FloatArray, FloatArray]]:
        """(n, K) among which the best is: for a given n it is at the least or the most KV, and along each of these
        lines, where the KV per request or all of it is fixed, earnings are concave or fall in n."""
        slots, kv_tokens = float(self.batch_slots), float(self.kv_tokens)
        candidates = []
        for each in (fewest_kv, most_kv):
            slope = self.slot_s + self.token_s * each
            most = min(slots, kv_tokens / each)
            n = np.clip(_peak(self.base_s * (rho + kappa * each), self.base_s, slope, holding), 0.0, most)
            candidates.append((n, n * each))
        low, high = kv_tokens / most_kv, min(slots, kv_tokens / fewest_kv)
        if low <= high:
            base = self.base_s + self.token_s * kv_tokens
            gain = rho * base - self.slot_s * kv_tokens * kappa
            n = np.clip(_peak(np.maximum(gain, 0.0), base, self.slot_s, holding), low, high)
            ends = np.full_like(rho, low), np.full_like(rho, high)
            candidates += [(one, np.full_like(rho, kv_tokens)) for one in (n, *ends)]
        return candidates


def _peak(gain: FloatArray, base_s: float, slope_s: float, holding: float) -> FloatArray:
    """Where the derivative gain/(base + slope·n)² − holding is 0; infinite where it is positive for all n."""
    if holding <= 0.0 or slope_s <= 0.0:
        rising: FloatArray = np.where(gain > holding * base_s**2, np.inf, 0.0)
        return rising
    peak: FloatArray = (np.sqrt(gain / holding) - base_s) / slope_s
    return peak


def device_kinds(devices: Sequence[Device], latency: DecodeLatency | tuple[DecodeLatency, ...]) -> list[DeviceKind]:
    """The kinds of a fleet. Raises ConfigError where iterations may take no time."""
    models = latency if isinstance(latency, tuple) else (latency,) * len(devices)
    packed = {model.name: model for model in models}
    counts = Counter(
        (device.batch_slots, device.kv_tokens, model.name) for device, model in zip(devices, models, strict=True)
    )
    return [_kind(count, slots, kv, packed[name]) for (slots, kv, name), count in counts.items()]


def _kind(count: int, slots: int, kv_tokens: int, model: DecodeLatency) -> DeviceKind:
    base_s, slot_s, token_s = _below(model, slots, kv_tokens)
    base_s -= ROUNDING_S
    if base_s <= 0:
        raise ConfigError(
            f"bound: latency {model.name} has no part that every iteration takes; expected A above 0 in affine:A,B,C"
        )
    token_s = min(token_s, slot_s)  # K counts one token more per request than the latency model does
    corners = [(n, kv) for n in (1, slots) for kv in (0, kv_tokens)]
    if model.packed[0] != AFFINE:
        corners = _grid(model, slots, kv_tokens)
    longest_s = max(model.seconds(n, kv) for n, kv in corners) + 2.0 * ROUNDING_S
    return DeviceKind(count, base_s, slot_s - token_s, token_s, slots, kv_tokens, longest_s)


def _below(model: DecodeLatency, slots: int, kv_tokens: int) -> tuple[float, float, float]:
    """a, b, c ≥ 0 with a + b·n + c·K ≤ the model's time for all 1 ≤ n ≤ slots and 0 ≤ K ≤ kv_tokens.

    Bilinear minus affine is least at a corner of its cell, so it is enough to stay below at every corner.
    """
    packed = model.packed
    if packed[0] == AFFINE:
        return float(packed[2]) / NS_PER_S, float(packed[3]) / NS_PER_S, float(packed[4]) / NS_PER_S
    corners = _grid(model, slots, kv_tokens)
    n, kv = np.array(corners, dtype=np.float64).T
    times = np.array([model.seconds(*corner) for corner in corners])
    terms = np.stack([np.ones_like(n), n, kv], axis=1) / times[:, None]
    fit = np.maximum(np.linalg.lstsq(terms, np.ones(len(times)), rcond=None)[0], 0.0)
    a, b, c = fit / np.max(terms @ fit)
    return float(a), float(b), float(c)


def _grid(model: DecodeLatency, slots: int, kv_tokens: int) -> list[tuple[int, int]]:
    """(n, K) of all corners of the cells of a table, within 1 ≤ n ≤ slots and 0 ≤ K ≤ kv_tokens."""
    packed = model.packed
    batches, knots = int(packed[2]), int(packed[3])
    n_at = _within(packed[4 : 4 + batches], 1, slots)
    kv_at = _within(packed[4 + batches : 4 + batches + knots], 0, kv_tokens)
    return [(n, kv) for n in n_at for kv in kv_at]


def _within(knots: FloatArray, low: int, high: int) -> list[int]:
    whole = np.unique(np.concatenate([np.floor(knots), np.ceil(knots)])).astype(np.int64)
    return [low, *whole[(whole > low) & (whole < high)].tolist(), high]
