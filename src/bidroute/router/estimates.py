"""Estimates of prompt tokens for everybody in the router, made anew when the calibration has moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bidroute.router.calibration import PromptTokens
from bidroute.router.metrics import RouterMetrics
from bidroute.router.roster import Roster
from bidroute.router.tickets import Job, Ticket
from bidroute.router.waiting_room import WaitingRoom
from bidroute.router.workers import Worker

RENEWED = 256  # at once of those who wait: all of a long queue would hold up every stream


class Estimates:
    """Knows how many tokens prompts have. Leases follow a new rate at once, those who wait in calls of `renew_some`."""

    def __init__(
        self, roster: Roster, room: WaitingRoom, tickets: Mapping[int, Ticket], metrics: RouterMetrics
    ) -> None:
        self.rates = PromptTokens()
        self._roster = roster
        self._room = room
        self._tickets = tickets
        self._metrics = metrics
        self._stale: dict[int, None] = {}

    def of(self, job: Job) -> int:
        """Tokens of a job's prompt: counted where they came as ids, else estimated."""
        if job.prompt_tokens is not None:
            return job.prompt_tokens
        return self.rates.estimate(job.model, job.prompt_bytes)

    def learned(self, ticket: Ticket, prompt_tokens: int) -> None:
        """A worker told the true number of this one's prompt."""
        job = ticket.job
        if job.prompt_tokens is not None:
            return
        self._metrics.prompt_estimated(ticket.prompt_tokens, prompt_tokens)
        self.rates.observe(job.model, job.prompt_bytes, prompt_tokens)
        self._follow((job.model,))

    def told(self, models: Iterable[str] | None, tokens_per_byte: float) -> None:
        """A worker that serves these models (None: it does not say) counted a sample text."""
        named = {"", *(models or ())}
        self.rates.told(named, tokens_per_byte)
        self._follow(named)

    def counted(self, worker: Worker, prompt_tokens_total: int) -> None:
        """A worker's counter of prompt tokens was read."""
        self._follow(worker.prompts.counted(prompt_tokens_total, worker.foreign_slots > 0, self.rates))

    def renew_some(self) -> None:
        """Estimate the next part of those who wait anew, where there are any."""
        some = [ticket_id for _, ticket_id in zip(range(RENEWED), self._stale, strict=False)]
        for ticket_id in some:
            del self._stale[ticket_id]
            ticket = self._tickets.get(ticket_id)
            if ticket is not None and ticket_id in self._room and ticket.prefill is None:
                self._room.reestimate(ticket, self.of(ticket.job))
        if some and self._room.apart:
            self._room.readmit()

    def _follow(self, models: Iterable[str]) -> None:
        moved = {model for model in models if self.rates.moved(model)}
        if not moved:
            return
        for ticket in self._tickets.values():
            if ticket.job.model not in moved or ticket.job.prompt_tokens is not None or ticket.prefill is not None:
                continue  # counted by the client, or by the worker that prefills it
            if ticket.id in self._room:
                self._stale[ticket.id] = None
            elif ticket.worker is not None:
                ticket.prompt_tokens = self.of(ticket.job)
                self._roster.controller.reestimated(ticket.id, ticket.prompt_tokens)
                self._room.sequences.reestimated(ticket)
        self.renew_some()
