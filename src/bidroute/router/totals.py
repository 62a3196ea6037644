"""Count what becomes of requests, in the totals since the start and in the metrics alike."""

from __future__ import annotations

from bidroute.router.metrics import RouterMetrics
from bidroute.router.state import TotalsState
from bidroute.router.tickets import Failure, RefusedError, Ticket
from bidroute.router.workers import Worker

# What a client was told at least when nobody served it, for the metrics.
_STATUS = {Failure.CLIENT: 400, Failure.BACK_PRESSURE: 503, Failure.FAULT: 502, Failure.STALLED: 504}


class Counts:
    """Totals and metrics, kept together so that they agree. Each method counts one event."""

    def __init__(self, metrics: RouterMetrics) -> None:
        self.totals = TotalsState()
        self.metrics = metrics

    def arrived(self) -> None:
        """A request came."""
        self.totals.requests += 1
        self.metrics.arrived()

    def refused(self, error: RefusedError) -> None:
        """A request was not taken, or had waited too long."""
        self.totals.refused += 1
        self.metrics.refused(error.code)
        self.metrics.ended("refused", error.status)

    def released(self, ticket: Ticket, worker: Worker) -> None:
        """It went to a worker."""
        self.totals.released += 1
        self.metrics.released(worker.name, ticket.released_s - ticket.arrival_s)

    def finished(self, ticket: Ticket, now_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """It was served, with this many tokens over all its prompts and choices."""
        self.totals.finished += 1
        self.totals.prompt_tokens += prompt_tokens
        self.totals.output_tokens += output_tokens
        self.metrics.ended("finished", 200)
        first_s = ticket.started_s - ticket.arrival_s
        each = output_tokens / ticket.job.choices
        self.metrics.finished(now_s - ticket.arrival_s, first_s, prompt_tokens, output_tokens, each)

    def cancelled(self) -> None:
        """Its client left."""
        self.totals.cancelled += 1
        self.metrics.ended("cancelled", 0)

    def failed(self, ticket: Ticket, failure: Failure) -> None:
        """Nobody served it, and it will not be tried again."""
        self.totals.failed += 1
        self.metrics.ended("failed", 200 if ticket.output_tokens else _STATUS[failure])

    def retried(self, failure: Failure | None) -> None:
        """It goes to another worker after this failure."""
        self.totals.retries += 1
        if failure is not None:
            self.metrics.retried(failure)
