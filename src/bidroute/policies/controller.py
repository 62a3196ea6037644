"""The controller: what every host drives. It owns the state, applies decisions, and tells the policy what happened.

Hosts own time, transport and failures. They call one method per event; the controller keeps queue, ledger and
length model consistent, so that no host can forget a lease or a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from bidroute.core.devices import Device
from bidroute.core.fleet import Fleet, Lease
from bidroute.core.queue import IntArray, WaitingQueue
from bidroute.core.requests import Request
from bidroute.core.state import RoutingState
from bidroute.errors import LedgerError, NeverFitsError
from bidroute.lengths.base import LengthPredictor
from bidroute.policies.base import Decision, Policy, Timing


class Controller:
    """One policy at work on one fleet.

    `require_max_tokens`: refuse a request when prompt + max_tokens fits no device (else only prompt + 1 counts).
    `learn_on_update`: estimate lengths anew in `update` instead of as soon as a request has finished.
    """

    def __init__(
        self,
        policy: Policy,
        devices: list[Device],
        predictor: LengthPredictor,
        *,
        require_max_tokens: bool = False,
        learn_on_update: bool = False,
    ) -> None:
        self.policy = policy
        self.predictor = predictor
        self.require_max_tokens = require_max_tokens
        self.learn_on_update = learn_on_update
        self.state = RoutingState(WaitingQueue(), Fleet(devices), predictor.model)

    # --- requests ---------------------------------------------------------------------------------------------

    def enqueue(self, now_s: float, request: Request) -> None:
        """A request arrived. Raises NeverFitsError when no device that takes requests could ever run it.

        It must fit with the first token it makes; with all of them where their number is known for certain, or
        up to `max_tokens` where the controller was told to require that.
        """
        if request.id in self.state.fleet:
            raise LedgerError(f"request {request.id} has an open lease already; ids must be unique")
        prediction = self.predictor.predict(request)
        exact_tokens = request.exact_tokens or prediction.exact_tokens
        self._refuse_what_never_fits(request, self._peak_tokens(request, exact_tokens))
        self.state.queue.add(request, prediction.length_class, exact_tokens)
        self.policy.request_arrived(now_s, request, prediction.length_class)

    def _refuse_what_never_fits(self, request: Request, peak_tokens: int) -> None:
        largest_tokens = self.state.fleet.largest_kv_tokens
        if peak_tokens > largest_tokens:
            if not self.state.fleet.accepting():
                raise NeverFitsError(f"request {request.id}: no device takes requests now; wait until one joins")
            raise NeverFitsError(
                f"request {request.id} needs {peak_tokens} KV tokens; the largest device holds {largest_tokens}: "
                "shorten it or add a larger device"
            )

    def update(self, now_s: float, state: RoutingState | None = None) -> None:
        """Let the policy refresh its slow estimates, from a frozen `state` where this runs beside the host's thread."""
        state = state or self.state
        if self.learn_on_update and state.lengths.due():
            state.lengths.learn(*state.fleet.running())
        self.policy.update(now_s, state)

    def decide(self, now_s: float, devices: Sequence[int]) -> Decision:
        """Ask the policy, open a lease for every assignment, and return the decision."""
        decision = self.policy.decide(now_s, self.state, devices)
        queue, fleet = self.state.queue, self.state.fleet
        for assignment in decision.assignments:
            request, length_class, exact_tokens = queue.entry(assignment.request_id)
            fleet.open(request, assignment.device, length_class, exact_tokens)
            queue.remove(assignment.request_id)
        return decision

    def started(self, request_id: int, *, prefilled: bool) -> None:
        """The request joined its device's batch; `prefilled` when its prompt is in the KV cache already."""
        self.state.fleet.start(request_id, prefilled=prefilled)

    def prefilled(self, request_id: int, decoded_tokens: int = 0) -> None:
        """The request's prompt is processed, and `decoded_tokens` output tokens came with it."""
        self.state.fleet.prefilled(request_id, decoded_tokens)

    def advanced(self, device: int, periods: int, duration_s: float) -> None:
        """`periods` iterations passed on the device; every decoding request has as many tokens more."""
        self.state.fleet.advance(device, periods, duration_s)

    def progressed(self, request_id: int, decoded_tokens: int) -> None:
        """The request has produced this many tokens in all."""
        self.state.fleet.progress(request_id, decoded_tokens)

    def reestimated(self, request_id: int, prompt_tokens: int) -> None:
        """The prompt, waiting or leased, is now believed to have this many tokens. Unknown ids raise LedgerError."""
        if request_id in self.state.queue:
            self.state.queue.reestimate(request_id, prompt_tokens)
        else:
            self.state.fleet.reestimate(request_id, prompt_tokens)

    def preempted(self, request_id: int) -> None:
        """The engine threw the request out of its batch, back into its own queue."""
        self.state.fleet.preempt(request_id)

    def finished(self, now_s: float, request_id: int, output_tokens: int) -> Lease:
        """The request ended by itself with this true length: close its lease and learn from it."""
        lease = self.state.fleet.close(request_id)
        lengths = self.state.lengths
        lengths.observe(lease.length_class, output_tokens)
        if lengths.due() and not self.learn_on_update:
            lengths.learn(*self.state.fleet.running())
        self.policy.request_finished(now_s, request_id, output_tokens)
        return lease

    def cancelled(self, request_id: int) -> None:
        """The request is gone, waiting or leased; nothing is learned from it. Unknown ids raise LedgerError."""
        if request_id in self.state.queue:
            self.state.queue.remove(request_id)
        else:
            self.state.fleet.close(request_id)

    def stranded(self) -> list[int]:
        """Ids of the waiting requests that no device could run any more, for a host to refuse after a device went."""
        queue, largest_tokens = self.state.queue, self.state.fleet.largest_kv_tokens
        waiting = zip(queue.ids.tolist(), queue.exact_tokens.tolist(), strict=True)
        return [i for i, exact in waiting if self._peak_tokens(queue.request(i), exact) > largest_tokens]

    def _peak_tokens(self, request: Request, exact_tokens: int) -> int:
        """The KV that some device must hold for the request to be let in."""
        output_tokens = max(1, exact_tokens)
        if self.require_max_tokens and request.max_tokens is not None:
            output_tokens = max(output_tokens, request.max_tokens)
        return request.prompt_tokens + output_tokens

    # --- parts of a fleet -------------------------------------------------------------------------------------

    def part(self, policy: Policy, devices: IntArray) -> Controller:
        """A controller beside this one, over the same ledger and length model, whose queue is for `devices` alone."""
        part = copy(self)
        part.policy = policy
        part.state = replace(self.state, queue=WaitingQueue())
        part.limit_to(self, devices)
        return part

    def limit_to(self, whole: Controller, devices: IntArray) -> None:
        """The devices of `whole` have changed: this part of it is about these."""
        self.state = replace(self.state, fleet=whole.state.fleet.limited_to(devices))

    # --- devices ----------------------------------------------------------------------------------------------

    def device_joined(self, device: Device) -> int:
        """A device joined; returns its index."""
        return self.state.fleet.join(device)

    def device_draining(self, device: int) -> None:
        """The device takes nothing new from now on."""
        self.state.fleet.drain(device)

    def device_resumed(self, device: int) -> None:
        """A draining device takes new requests again."""
        self.state.fleet.resume(device)

    def device_resized(self, device: int, batch_slots: int, kv_tokens: int) -> None:
        """The device's capacity changed."""
        self.state.fleet.resize(device, batch_slots, kv_tokens)

    def device_left(self, device: int) -> list[Lease]:
        """The device is gone: all its leases are closed and returned, for the host to retry or fail."""
        return self.state.fleet.leave(device)

    @property
    def dispatches_on_arrival(self) -> bool:
        """Whether engines keep queues of their own under this policy."""
        return self.policy.timing is Timing.ON_ARRIVAL
