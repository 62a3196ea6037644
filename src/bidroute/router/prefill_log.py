"""What became of each request's prefills, for `/explain`."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from bidroute.router.decision_log import MOST_OF_ONE, REMEMBERED, public_id
from bidroute.router.state import PrefillStep
from bidroute.router.tickets import Failure, Ticket


@dataclass(slots=True)
class _Entry:
    entered_s: float
    worker: str = ""
    prompt_tokens: int = 0
    sent_s: float = math.nan
    prefilled_s: float = math.nan
    handed_s: float = math.nan
    failure: str | None = None


class PrefillLog:
    """Remembers the prefills of the last requests. Times are the router's clock, in seconds."""

    def __init__(self) -> None:
        self._by_request: OrderedDict[str, deque[_Entry]] = OrderedDict()

    def waits(self, ticket: Ticket, now_s: float) -> None:
        """It waits for a prefill worker."""
        request_id = public_id(ticket)
        self._by_request.setdefault(request_id, deque(maxlen=MOST_OF_ONE)).append(_Entry(now_s))
        self._by_request.move_to_end(request_id)
        if len(self._by_request) > REMEMBERED:
            self._by_request.popitem(last=False)

    def sent(self, ticket: Ticket, now_s: float) -> None:
        """It was sent to the prefill worker that its lease names."""
        entry = self._last(ticket)
        if entry is not None and ticket.prefill is not None:
            entry.worker, entry.prompt_tokens, entry.sent_s = ticket.prefill.worker.name, ticket.prompt_tokens, now_s

    def prefilled(self, ticket: Ticket, now_s: float) -> None:
        """The worker has processed the prompt, whose true length is known."""
        entry = self._last(ticket)
        if entry is not None:
            entry.prompt_tokens, entry.prefilled_s = ticket.prompt_tokens, now_s

    def handed_over(self, ticket: Ticket, now_s: float) -> None:
        """A decode worker is to fetch the KV."""
        entry = self._last(ticket)
        if entry is not None:
            entry.handed_s = now_s

    def failed(self, ticket: Ticket, failure: Failure) -> None:
        """The worker did not serve it."""
        entry = self._last(ticket)
        if entry is not None:
            entry.failure = failure.value

    def of(self, request_id: str, held_by: str, now_s: float, lease_s: float) -> list[PrefillStep]:
        """What is remembered of this request; `held_by` is why those who wait for a prefill do."""
        return [_step(entry, held_by, now_s, lease_s) for entry in self._by_request.get(request_id, ())]

    def _last(self, ticket: Ticket) -> _Entry | None:
        entries = self._by_request.get(public_id(ticket))
        return entries[-1] if entries else None


def _step(entry: _Entry, held_by: str, now_s: float, lease_s: float) -> PrefillStep:
    sent, prefilled = not math.isnan(entry.sent_s), not math.isnan(entry.prefilled_s)
    if entry.failure is not None:
        status = f"failed: {entry.failure}"
    elif not math.isnan(entry.handed_s):
        status = "handed over"
    else:
        status = "prefilled" if prefilled else "prefilling" if sent else "waiting"
    prefill_end_s = entry.prefilled_s if prefilled else now_s
    return PrefillStep(
        status=status,
        worker=entry.worker,
        prompt_tokens=entry.prompt_tokens,
        wait_s=(entry.sent_s if sent else now_s) - entry.entered_s,
        prefill_s=prefill_end_s - entry.sent_s if sent and entry.failure is None else 0.0,
        lease_left_s=max(entry.prefilled_s + lease_s - now_s, 0.0) if status == "prefilled" else None,
        held_by=held_by if status == "waiting" and held_by else None,
    )
