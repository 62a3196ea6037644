"""The dispatcher as the HTTP side sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from bidroute.router.tickets import Failure, Job, Ticket
from bidroute.router.workers import Worker


class Dispatching(Protocol):
    """Decides which worker serves which request, and when. Called on the event loop; nothing blocks.

    Every submitted ticket ends exactly once: by `finished`, `cancelled`, a `failed` that no `retry` follows, or by a
    RefusedError out of `released`.
    """

    @property
    def workers(self) -> Mapping[str, Worker]:
        """The workers in service, by name."""
        ...

    @property
    def splits(self) -> bool:
        """Whether prompts are processed on workers of their own."""
        ...

    def least_busy(self, model: str) -> Worker:
        """The worker for a request without a price, such as embeddings. Raises RefusedError where there is none."""
        ...

    def submit(self, job: Job) -> Ticket:
        """Put a job in the queue. Raises RefusedError."""
        ...

    async def released(self, ticket: Ticket) -> Worker:
        """Wait for a worker: the one to decode, or, where `Ticket.prefill` is new, the one to process the prompt first.

        Raises RefusedError, which ends the ticket; where it is cancelled, say `cancelled`.
        """
        ...

    def prefilled(self, ticket: Ticket, params: bytes, prompt_tokens: int | None) -> None:
        """The prompt is processed. Raises RefusedError, which ends the ticket; else await `released` again."""
        ...

    def started(self, ticket: Ticket) -> None:
        """The first output is there: the prefill is done."""
        ...

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        """So many output tokens were seen so far, in all."""
        ...

    def finished(self, ticket: Ticket, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Served; the true counts over all prompts and choices, where known."""
        ...

    def cancelled(self, ticket: Ticket) -> None:
        """The client left, queued or running."""
        ...

    def failed(self, ticket: Ticket, failure: Failure, detail: str = "", *, reached: bool = True) -> None:
        """The worker did not serve it; `reached` False: nor did it ever have it."""
        ...

    def retry(self, ticket: Ticket) -> None:
        """After `failed`: back into the queue."""
        ...
