"""Expected lengths, remaining lengths and footprints of requests, as tables that follow the length model."""

from __future__ import annotations

import numpy as np

from bidroute.core.lengths import LengthModel
from bidroute.core.queue import FloatArray, IntArray


class ExpectedLengths:
    """Moments of the length classes, recomputed when the model's version has changed.

    `mean_tokens` float64[classes] = Σ S(θ), the expected output tokens; `first_moment` float64[classes] = Σ θ·S(θ).
    """

    def __init__(self) -> None:
        self._seen: tuple[LengthModel, int] | None = None
        self.mean_tokens: FloatArray = np.zeros(0)
        self.first_moment: FloatArray = np.zeros(0)

    def refresh(self, lengths: LengthModel) -> None:
        """Follow this model as it is now."""
        if self._seen is None or self._seen[0] is not lengths:
            self._make_room(lengths)
            self._recompute(lengths, np.arange(lengths.classes))
        elif self._seen[1] != lengths.version:
            self._recompute(lengths, (lengths.changed_at > self._seen[1]).nonzero()[0])
        self._seen = lengths, lengths.version

    def _make_room(self, lengths: LengthModel) -> None:
        self.mean_tokens, self.first_moment = np.zeros((2, lengths.classes))
        self._ages = np.arange(lengths.horizon_tokens + 1, dtype=np.float64)

    def _recompute(self, lengths: LengthModel, classes: IntArray) -> None:
        survival = lengths.survival[classes]
        self.mean_tokens[classes] = survival.sum(axis=1)
        # Not a matrix product, whose threads would cost more than they save and round as the machine has cores.
        self.first_moment[classes] = (survival * self._ages).sum(axis=1)

    def tokens(self, length_class: IntArray, exact_tokens: IntArray) -> FloatArray:
        """Expected output tokens of each request; both arguments int64[n]."""
        return np.where(exact_tokens > 0, exact_tokens, self.mean_tokens[length_class])

    def footprint(
        self,
        prompt_tokens: IntArray,
        length_class: IntArray,
        exact_tokens: IntArray,
        batch_slots: float,
        kv_tokens: float,
    ) -> FloatArray:
        """Expected share of a device's time: Σ_θ S(θ)·(1/B + (s+θ+1)/C), in device-periods, float64[n].

        Each term is the fraction of one resource that one period of the request takes. Their sum is the cost of its
        column (docs/how-it-works.md) at the prices that value a full device's slots and its KV alike.
        """
        known = exact_tokens > 0
        periods = np.where(known, exact_tokens, self.mean_tokens[length_class])
        moment = np.where(known, 0.5 * exact_tokens * (exact_tokens - 1.0), self.first_moment[length_class])
        return np.asarray(periods * (1.0 / batch_slots + (prompt_tokens + 1.0) / kv_tokens) + moment / kv_tokens)


class ResidualLengths(ExpectedLengths):
    """The same, with the mean residual life of every age.

    `mean_residual` float64[classes, horizon+1]: expected tokens still to come after θ, at least 1 while running.
    """

    def _make_room(self, lengths: LengthModel) -> None:
        self.mean_tokens, self.mean_residual = np.zeros(lengths.classes), np.zeros(lengths.survival.shape)

    def _recompute(self, lengths: LengthModel, classes: IntArray) -> None:
        alive = lengths.survival[classes]
        ahead = np.cumsum(alive[:, ::-1], axis=1)[:, ::-1]
        self.mean_tokens[classes] = alive.sum(axis=1)
        residual = np.divide(ahead, alive, out=np.ones_like(ahead), where=alive > 0.0)
        self.mean_residual[classes] = np.maximum(residual, 1.0)
