"""What the output of running requests tells: their prompts are processed, how far they are, how fast workers go."""

from __future__ import annotations

import math
from collections.abc import Callable

from bidroute.router.metrics import RouterMetrics
from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.roster import Roster
from bidroute.router.tickets import Ticket
from bidroute.router.waiting_room import WaitingRoom

PROGRESS_TOKENS = 8  # a stream's progress enters the ledger in steps of so many tokens


class Streams:
    """Keeps the ledger up with what comes out of workers."""

    def __init__(self, roster: Roster, room: WaitingRoom, metrics: RouterMetrics, clock: Callable[[], float]) -> None:
        self._roster = roster
        self._room = room
        self._metrics = metrics
        self._clock = clock
        self._reported: dict[int, tuple[int, float]] = {}  # tokens and time of each stream's last progress

    def __len__(self) -> int:
        """Streams whose progress is followed."""
        return len(self._reported)

    def started(self, ticket: Ticket) -> None:
        """Its first output came: the prompt is processed."""
        if ticket.worker is None or not math.isnan(ticket.started_s):
            return
        ticket.started_s, ticket.output_tokens = self._clock(), 1
        ticket.worker.events_heard += 1
        self._reported[ticket.id] = 1, ticket.started_s
        self._metrics.started(ticket.started_s - ticket.arrival_s)
        controller = self._roster.controller
        if ticket.prefill is not None:
            controller.progressed(ticket.id, 1)
            ticket.prefill.become(LeaseStage.CLOSED)  # the KV was fetched
            return
        ticket.worker.prompts.processed(*ticket.job.all_prompts)
        controller.prefilled(ticket.id, 1)
        self._room.sequences.prefilled(ticket)

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        """It has `tokens` of output so far, over all its choices."""
        ticket.output_tokens = tokens
        if ticket.worker is None:
            return
        ticket.worker.events_heard += 1
        if ticket.siblings:
            tokens = -(-tokens // (1 + len(ticket.siblings)))
        reported, since_s = self._reported.get(ticket.id, (tokens, 0.0))
        if tokens - reported < PROGRESS_TOKENS:
            return
        now_s, controller = self._clock(), self._roster.controller
        self._reported[ticket.id] = tokens, now_s
        controller.progressed(ticket.id, tokens)
        self._room.sequences.progressed(ticket, tokens)
        controller.state.fleet.observe_pace(ticket.worker.device, 1, (now_s - since_s) / (tokens - reported))

    def ended(self, ticket: Ticket) -> None:
        """Nothing more comes of it."""
        self._reported.pop(ticket.id, None)
