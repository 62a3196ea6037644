"""What was decided lately and why, for the page, for `/explain`, and for whoever asks afterwards."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence

from bidroute.policies import Controller
from bidroute.policies.base import Decision, Explanation
from bidroute.router.state import DecisionState, RunnerUp
from bidroute.router.tickets import Ticket
from bidroute.router.workers import Worker

RECENT = 60  # decisions shown
REMEMBERED = 2_000  # requests whose decisions are kept
MOST_OF_ONE = 16  # decisions kept by request id: clients may send one id again and again
EXPLAINED_PER_S = 5.0  # an explanation costs as much as several decisions
MOST_EXPLAINED = 32  # waiting requests; in longer queues nobody is explained unasked: it would delay the decision


class DecisionLog:
    """Remembers releases; explains as many of them as its budget allows. Times are the router's clock, in seconds."""

    def __init__(self, started_s: float) -> None:
        self.recent: deque[DecisionState] = deque(maxlen=RECENT)
        self._started_s = started_s
        self._by_request: OrderedDict[str, deque[DecisionState]] = OrderedDict()
        self._budget = EXPLAINED_PER_S
        self._paid_s = started_s

    def explain(self, now_s: float, controller: Controller, ready: Sequence[int]) -> dict[int, Explanation]:
        """What the policy thinks of those who wait, by request id, before it decides; empty beyond the budget."""
        self._budget = min(self._budget + (now_s - self._paid_s) * EXPLAINED_PER_S, EXPLAINED_PER_S)
        self._paid_s = now_s
        if self._budget < 1.0 or len(controller.state.queue) > MOST_EXPLAINED:
            return {}
        self._budget -= 1.0
        ids = controller.state.queue.ids.tolist()
        explained = controller.policy.explain(now_s, controller.state, ready, ids)
        return {one.request_id: one for one in explained}

    def decided(
        self,
        now_s: float,
        decision: Decision,
        explained: Mapping[int, Explanation],
        tickets: Mapping[int, Ticket],
        workers: Mapping[int, Worker],
    ) -> None:
        """Note what was released; `workers` by device."""
        if not decision.assignments:
            return
        released = {assignment.request_id for assignment in decision.assignments}
        rest = [one for one in explained.values() if one.request_id not in released and one.request_id in tickets]
        best = max(rest, key=lambda one: one.value, default=None)
        runner_up = None
        if best is not None:
            runner_up = RunnerUp(public_id(tickets[best.request_id]), _name(workers, best.device), best.value)
        for assignment in decision.assignments:
            ticket, one = tickets[assignment.request_id], explained.get(assignment.request_id)
            self._remember(
                DecisionState(
                    request_id=public_id(ticket),
                    worker=_name(workers, assignment.device),
                    at_s=now_s - self._started_s,
                    wait_s=now_s - ticket.arrival_s,
                    outcome="released",
                    value=one.value if one else 0.0,
                    reward=one.reward if one else {},
                    price=one.price if one else {},
                    runner_up=runner_up,
                )
            )

    def held(self, now_s: float, one: Explanation, ticket: Ticket, worker: str, instead: list[str]) -> DecisionState:
        """A waiting request, explained on demand."""
        return DecisionState(
            request_id=public_id(ticket),
            worker=worker,
            at_s=now_s - self._started_s,
            wait_s=one.wait_s,
            outcome="held",
            value=one.value,
            reward=one.reward,
            price=one.price,
            held_by=str(one.held_by) if one.held_by else None,
            instead=instead,
        )

    def of(self, request_id: str) -> list[DecisionState]:
        """What is remembered of this request, oldest first."""
        return list(self._by_request.get(request_id, []))

    def _remember(self, state: DecisionState) -> None:
        self.recent.append(state)
        before = self._by_request.get(state.request_id)
        if before is None:
            self._by_request[state.request_id] = deque((state,), MOST_OF_ONE)
        else:
            before.append(state)
            self._by_request.move_to_end(state.request_id)
        if len(self._by_request) > REMEMBERED:
            self._by_request.popitem(last=False)


def _name(workers: Mapping[int, Worker], device: int) -> str:
    """The worker's name; one that has just left has none."""
    return workers[device].name if device in workers else "?"


def public_id(ticket: Ticket) -> str:
    """What the client knows the request by."""
    return ticket.job.request_id or str(ticket.id)
