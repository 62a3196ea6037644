"""Requests of several sequences: `n`, `best_of`, lists of prompts. Each sequence has a slot and KV of its own.

The policy decides on such a request as on one whose prompt is as large as all of them; the ledger then holds a lease
for each, so that its further sequences are known wherever slots and KV are counted.
"""

from __future__ import annotations

import itertools

from bidroute.core.fleet import Fleet
from bidroute.core.requests import Request
from bidroute.router.roster import Roster
from bidroute.router.tickets import Ticket
from bidroute.router.workers import Worker


def slots_needed(ticket: Ticket, worker: Worker, fleet: Fleet) -> int:
    """Slots it takes on this worker: one for each sequence, or all there are."""
    return min(ticket.job.choices, max(int(fleet.batch_slots[worker.device]), 1))


class Sequences:
    """The leases of a request's sequences after its first, which has the request's own. Their ids are below 0."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._ids = itertools.count(-1, -1)

    def footprint_tokens(self, ticket: Ticket, largest_tokens: int) -> int:
        """The prompt as the policy is to see it: all sequences, and what those after the first are expected to make.

        At most `largest_tokens`, unless its one prompt has more: sequences need not run all at once.
        """
        more = ticket.job.choices - 1
        if not more:
            return ticket.prompt_tokens
        request = Request(ticket.id, ticket.arrival_s, ticket.prompt_tokens, ticket.job.max_tokens)
        output_tokens = self._roster.mean_tokens(self._roster.predictor.predict(request).length_class)
        tokens = ticket.prompt_tokens + more * (ticket.prompt_tokens + round(output_tokens))
        return max(min(tokens, largest_tokens), ticket.prompt_tokens)

    def open(self, ticket: Ticket, worker: Worker) -> None:
        """Its own lease is open there: open those of its further sequences."""
        fleet = self._roster.controller.state.fleet
        fleet.reestimate(ticket.id, ticket.prompt_tokens)
        device, position = fleet.locate(ticket.id)
        length_class = int(fleet.ledgers[device].length_class[position])
        for _ in range(slots_needed(ticket, worker, fleet) - 1):
            request = Request(next(self._ids), ticket.arrival_s, ticket.prompt_tokens, ticket.job.max_tokens)
            fleet.open(request, worker.device, length_class)
            ticket.siblings.append(request.id)
            fleet.start(request.id, prefilled=False)

    def prefilled(self, ticket: Ticket) -> None:
        """The first output of any of them came."""
        for lease_id in ticket.siblings:
            self._roster.controller.prefilled(lease_id, 1)

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        """Each has made so many tokens, about."""
        for lease_id in ticket.siblings:
            self._roster.controller.progressed(lease_id, tokens)

    def reestimated(self, ticket: Ticket) -> None:
        """Its prompt is believed to have another number of tokens."""
        for lease_id in ticket.siblings:
            self._roster.controller.reestimated(lease_id, ticket.prompt_tokens)

    def close(self, ticket: Ticket) -> None:
        """The request ends: close the leases of its further sequences, those that are open."""
        fleet = self._roster.controller.state.fleet
        for lease_id in ticket.siblings:
            if lease_id in fleet:  # else its worker has left, and has closed it
                fleet.close(lease_id)
        ticket.siblings.clear()
