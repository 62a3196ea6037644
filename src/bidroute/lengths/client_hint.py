"""Classes from what clients say: a predicted length, or else the limit they ask for."""

from __future__ import annotations

from bidroute.core.lengths import PRIOR_SHAPE
from bidroute.core.requests import Request
from bidroute.lengths.bins import LogBins
from bidroute.lengths.hint_classes import HINT_BINS, HintClasses


class ClientHint(HintClasses):
    """One class per logarithmic bin of `predicted_tokens`, or of `max_tokens` where no prediction came.

    A limit says little about the length itself, but requests with like limits tend to be alike; how long they
    are is learned.
    """

    def __init__(self, bins: LogBins = HINT_BINS) -> None:
        super().__init__(bins, prior_shape=PRIOR_SHAPE)

    def hint_tokens(self, request: Request) -> float | None:
        """The prediction if there is one, else the limit."""
        return request.max_tokens if request.predicted_tokens is None else request.predicted_tokens
