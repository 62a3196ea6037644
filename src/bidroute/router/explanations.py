"""What became of one request, and why: from the logs of decisions and prefills, and from the policy while it waits."""

from __future__ import annotations

from bidroute.router.dispatcher import Dispatcher
from bidroute.router.fleet_admin import NoSuchError
from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.state import DecisionState, RequestExplanation
from bidroute.router.tickets import Ticket


def explained(dispatcher: Dispatcher, request_id: str) -> RequestExplanation:
    """By the client's id, or the router's own. Raises NoSuchError when nothing is known of it (any more)."""
    decisions, prefills = dispatcher.log.of(request_id), dispatcher.prefill.steps(request_id)
    ticket = next((t for t in dispatcher.tickets.values() if request_id in (t.job.request_id, str(t.id))), None)
    if ticket is None:
        if not decisions and not prefills:
            raise NoSuchError(f"request {request_id!r} is unknown, or too long gone to be remembered")
        return RequestExplanation(request_id, "ended", [one.worker for one in decisions], decisions, prefills)
    if dispatcher.waits(ticket):
        status, decisions = "waiting", decisions + _held(dispatcher, ticket)
    else:
        prefilling = ticket.prefill is not None and ticket.prefill.stage is LeaseStage.SENT
        status = "prefilling" if prefilling else "running"
    return RequestExplanation(request_id, status, list(ticket.attempts), decisions, prefills)


def _held(dispatcher: Dispatcher, ticket: Ticket) -> list[DecisionState]:
    """What the policy thinks now of one that waits."""
    if not dispatcher.in_queue(ticket):
        return []
    controller, now_s = dispatcher.controller_of(ticket), dispatcher.clock()
    state = controller.state
    names = {worker.device: worker.name for worker in dispatcher.workers.values()}
    reasons = controller.policy.explain(now_s, state, state.fleet.accepting(), [ticket.id])
    return [dispatcher.log.held(now_s, one, ticket, names.get(one.device, "?"), []) for one in reasons]
