"""The central waiting queue, stored by column so that a decision over thousands of requests is one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bidroute.core.queue_kernels import move_last_row
from bidroute.core.requests import Request
from bidroute.errors import LedgerError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)


# Rows of `QueueColumns.ints` and `QueueColumns.floats`.
ID, SEQUENCE, PROMPT_TOKENS, LENGTH_CLASS, EXACT_TOKENS, SKIPS = 0, 1, 2, 3, 4, 5
ARRIVAL_S, PRIORITY, TTFT_SLO_S, E2E_SLO_S = 0, 1, 2, 3


class QueueColumns(NamedTuple):
    """The queue as kernels read it: `ints` int64[6, ≥n] and `floats` float64[4, ≥n], of which the first `n` wait."""

    ints: IntArray
    floats: FloatArray
    n: int


class WaitingQueue:
    """Requests that wait in the router. Columns are views of the first `len(queue)` rows, in no set order.

    Removal swaps the last row into the gap, so a position is valid only until the next change; ids are stable.
    Columns: `ids`, `sequence` (order of entry), `arrival_s`, `prompt_tokens`, `length_class`, `exact_tokens`
    (the output length where it is known for certain, else 0), `priority`, `ttft_slo_s`, `e2e_slo_s`,
    `skips` (times another request was taken past this one while it was the best).
    """

    def __init__(self) -> None:
        self._rows = 0
        self._entered = 0
        self._position: dict[int, int] = {}
        self._requests: dict[int, Request] = {}
        self._ints = np.zeros((6, 64), dtype=np.int64)
        self._floats = np.zeros((4, 64), dtype=np.float64)

    def __len__(self) -> int:
        return self._rows

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._position

    def frozen(self) -> WaitingQueue:
        """A copy of the columns as they are now, to be read in another thread; requests and positions stay behind."""
        queue = WaitingQueue()
        queue._rows = self._rows
        queue._ints, queue._floats = self._ints[:, : self._rows].copy(), self._floats[:, : self._rows].copy()
        return queue

    def columns(self) -> QueueColumns:
        """All columns at once, for kernels; valid until the next change."""
        return QueueColumns(self._ints, self._floats, self._rows)

    @property
    def ids(self) -> IntArray:
        """Request ids, int64[n]."""
        return self._ints[ID, : self._rows]

    @property
    def sequence(self) -> IntArray:
        """Order of entry into the queue, int64[n]; smaller is earlier."""
        return self._ints[SEQUENCE, : self._rows]

    @property
    def prompt_tokens(self) -> IntArray:
        """Prompt tokens, int64[n]."""
        return self._ints[PROMPT_TOKENS, : self._rows]

    @property
    def length_class(self) -> IntArray:
        """Length class of each request, int64[n]."""
        return self._ints[LENGTH_CLASS, : self._rows]

    @property
    def exact_tokens(self) -> IntArray:
        """Output tokens where known for certain, else 0, int64[n]."""
        return self._ints[EXACT_TOKENS, : self._rows]

    @property
    def skips(self) -> IntArray:
        """How often each request, while it was the best, was passed over, int64[n]; policies may write it."""
        return self._ints[SKIPS, : self._rows]

    @property
    def arrival_s(self) -> FloatArray:
        """Arrival times in seconds, float64[n]."""
        return self._floats[ARRIVAL_S, : self._rows]

    @property
    def priority(self) -> FloatArray:
        """Priorities, float64[n]; 0 is ordinary, higher is more urgent."""
        return self._floats[PRIORITY, : self._rows]

    @property
    def ttft_slo_s(self) -> FloatArray:
        """First-token SLOs in seconds after arrival, float64[n]; infinity means none."""
        return self._floats[TTFT_SLO_S, : self._rows]

    @property
    def e2e_slo_s(self) -> FloatArray:
        """End-to-end SLOs in seconds after arrival, float64[n]; infinity means none."""
        return self._floats[E2E_SLO_S, : self._rows]

    def request(self, request_id: int) -> Request:
        """The request with this id. Raises LedgerError when it does not wait here."""
        try:
            return self._requests[request_id]
        except KeyError:
            raise LedgerError(f"request {request_id} does not wait in the queue") from None

    def position(self, request_id: int) -> int:
        """Where the request stands in the columns now. Raises LedgerError when it does not wait here."""
        try:
            return self._position[request_id]
        except KeyError:
            raise LedgerError(f"request {request_id} does not wait in the queue") from None

    def entry(self, request_id: int) -> tuple[Request, int, int]:
        """The request with this id, its length class and its exact tokens. Raises LedgerError unless it waits here."""
        row = self.position(request_id)
        return self._requests[request_id], int(self._ints[LENGTH_CLASS, row]), int(self._ints[EXACT_TOKENS, row])

    def add(self, request: Request, length_class: int, exact_tokens: int = 0) -> None:
        """Let a request wait. Raises LedgerError when its id waits already."""
        if request.id in self._position:
            raise LedgerError(f"request {request.id} waits in the queue already; ids must be unique")
        row = self._rows
        if row == self._ints.shape[1]:
            self._ints = _doubled(self._ints)
            self._floats = _doubled(self._floats)
        self._ints[:, row] = (
            request.id,
            self._entered,
            request.prompt_tokens,
            length_class,
            exact_tokens,
            0,
        )
        self._floats[:, row] = (request.arrival_s, request.priority, request.ttft_slo_s, request.e2e_slo_s)
        self._position[request.id] = row
        self._requests[request.id] = request
        self._rows += 1
        self._entered += 1

    def reestimate(self, request_id: int, prompt_tokens: int) -> None:
        """The prompt is now believed to have `prompt_tokens`. Raises LedgerError when it does not wait here."""
        self._requests[request_id] = replace(self.request(request_id), prompt_tokens=prompt_tokens)
        self._ints[PROMPT_TOKENS, self._position[request_id]] = prompt_tokens

    def remove(self, request_id: int) -> Request:
        """Take a request out and return it. Raises LedgerError when it does not wait here."""
        request = self.request(request_id)
        row, last = self._position.pop(request_id), self._rows - 1
        if row != last:
            self._position[move_last_row(self._ints, self._floats, row, last)] = row
        del self._requests[request_id]
        self._rows = last
        return request


def _doubled(columns: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    return np.concatenate([columns, np.zeros_like(columns)], axis=1)
