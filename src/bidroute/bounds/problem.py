"""What a bound is computed for: the requests of a trace that can run, and the kinds of devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bidroute.bounds.fleet import DeviceKind, device_kinds
from bidroute.core.queue import FloatArray
from bidroute.errors import ConfigError
from bidroute.simulator import Scenario


@dataclass(frozen=True, slots=True)
class Problem:
    """`arrival_s`, `prompt_tokens`, `output_tokens` float64[n], sorted by arrival; n ≥ 1."""

    arrival_s: FloatArray
    prompt_tokens: FloatArray
    output_tokens: FloatArray
    kinds: list[DeviceKind]

    @property
    def fewest_kv(self) -> float:
        """The least KV that a running request ever holds."""
        return float(self.prompt_tokens.min()) + 1.0

    @property
    def most_kv(self) -> float:
        """The most KV that a running request ever holds."""
        return float((self.prompt_tokens + self.output_tokens).max())

    @property
    def fastest_s(self) -> float:
        """The least time of an iteration."""
        return min(kind.base_s + kind.slot_s + kind.token_s * self.fewest_kv for kind in self.kinds)

    @property
    def slowest_s(self) -> float:
        """The most time of an iteration."""
        return max(kind.longest_s for kind in self.kinds)

    @property
    def token_iterations(self) -> FloatArray:
        """KV tokens of each request, summed over its iterations, float64[n]."""
        output = self.output_tokens
        held: FloatArray = output * (self.prompt_tokens + 1.0) + output * (output - 1.0) / 2.0
        return held

    def work_s(self, slot_share: float | None = None) -> FloatArray:
        """Device-seconds that each request takes at least, on its best kind, float64[n].

        The part a of an iteration is split among its requests by slots, or by KV: `slot_share` of it by slots; None
        takes for each request whichever split says more.
        """
        works = []
        for kind in self.kinds:
            by_slots = kind.base_s * self.output_tokens / kind.batch_slots
            by_kv = kind.base_s * self.token_iterations / kind.kv_tokens
            own = kind.slot_s * self.output_tokens + kind.token_s * self.token_iterations
            shared = np.maximum(by_slots, by_kv)
            if slot_share is not None:
                shared = slot_share * by_slots + (1.0 - slot_share) * by_kv
            works.append(own + shared)
        work: FloatArray = np.min(works, axis=0)
        return work

    @property
    def devices(self) -> int:
        """G."""
        return sum(kind.count for kind in self.kinds)


def problem_of(scenario: Scenario) -> Problem:
    """The problem of a decode-only scenario. Requests that fit no device are left out, as policies refuse them.

    Raises ConfigError for another mode, and where no request fits.
    """
    if scenario.mode != "decode":
        raise ConfigError(f"bound: mode {scenario.mode}; bounds are known for mode decode only")
    workload = scenario.workload
    tokens = workload.prompt_tokens + workload.output_tokens
    largest = max(device.kv_tokens // device.block_size * device.block_size for device in scenario.devices)
    fits = tokens <= largest
    if not fits.any():
        raise ConfigError(f"bound: no request fits a device of {largest} KV tokens; give more")
    columns = workload.arrival_s, workload.prompt_tokens, workload.output_tokens
    arrival_s, prompt, output = (column[fits].astype(np.float64) for column in columns)
    return Problem(arrival_s, prompt, output, device_kinds(scenario.devices, scenario.latency))
