"""A ticket that ends exactly once, whatever happens to its request."""

from __future__ import annotations

from bidroute.router.dispatching import Dispatching
from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.workers import Worker


class OpenTicket:
    """Stands between one request and the dispatcher. `close` in a `finally` makes any other way out a cancellation."""

    __slots__ = ("_dispatcher", "_open", "outcome", "ticket")

    def __init__(self, dispatcher: Dispatching, job: Job) -> None:
        """Submit the job. Raises RefusedError."""
        self._dispatcher = dispatcher
        self.ticket: Ticket = dispatcher.submit(job)
        self._open = True
        self.outcome = "cancelled"

    async def released(self) -> Worker:
        """Wait for a worker; see `prefills` for what it is to do. Raises RefusedError: then the ticket has ended."""
        try:
            return await self._dispatcher.released(self.ticket)
        except RefusedError:
            self._end("refused")
            raise

    @property
    def prefills(self) -> bool:
        """Whether the worker it was released to is to process the prompt only."""
        lease = self.ticket.prefill
        return lease is not None and lease.stage is LeaseStage.SENT

    @property
    def fetched_with(self) -> bytes | None:
        """What the decode worker fetches the prompt's KV with, as JSON; None where it processes the prompt itself."""
        return None if self.ticket.prefill is None else self.ticket.prefill.params

    def prefilled(self, params: bytes, prompt_tokens: int | None) -> None:
        """The prompt is processed; await `released` again. Raises RefusedError: then the ticket has ended."""
        try:
            self._dispatcher.prefilled(self.ticket, params, prompt_tokens)
        except RefusedError:
            self._end("refused")
            raise

    def started(self) -> None:
        """The first output is there."""
        self._dispatcher.started(self.ticket)

    def progressed(self, output_tokens: int) -> None:
        """So many output tokens so far; nothing once the ticket has ended."""
        if self._open:
            self._dispatcher.progressed(self.ticket, output_tokens)

    def finished(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Served, with the true counts where known; a second call does nothing."""
        if self._end("finished"):
            self._dispatcher.finished(self.ticket, prompt_tokens, output_tokens)

    def failed(self, failure: Failure, detail: str, reached: bool = True) -> None:
        """Not served by this worker, which may never have been `reached`; final unless `retry` follows."""
        if self._end(failure.value):
            self._dispatcher.failed(self.ticket, failure, detail, reached=reached)

    def retry(self) -> None:
        """Back into the queue after `failed`."""
        self._open = True
        self.outcome = "cancelled"
        self._dispatcher.retry(self.ticket)

    def close(self) -> None:
        """The client is gone where the ticket is still open."""
        if self._end("cancelled"):
            self._dispatcher.cancelled(self.ticket)

    def _end(self, outcome: str) -> bool:
        was_open, self._open = self._open, False
        if was_open:
            self.outcome = outcome
        return was_open
