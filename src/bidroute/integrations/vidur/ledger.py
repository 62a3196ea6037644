"""What happens on the replicas, told to the controller, so that its ledger follows them.

Iterations are counted up and told when somebody looks, or when a request joins or leaves: as in the simulator, so
that the same run teaches a policy the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from vidur.entities import Batch

from bidroute.integrations.vidur.replicas import Replica
from bidroute.integrations.vidur.requests import RoutedRequest
from bidroute.policies.controller import Controller

NS_PER_S = 1e9


def nanoseconds(time_s: float) -> int:
    """A time of Vidur's in whole nanoseconds: sums of many floats, and yet the same as in the simulator."""
    return round(time_s * NS_PER_S)


class Account:
    """One replica as the ledger has it: who is in its batch, who of them prefills, and what was not told yet."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.in_batch: dict[int, RoutedRequest] = {}
        self.thrown_out: list[RoutedRequest] = []
        self.prefilling: set[int] = set()
        self.running = False
        self.iterations = 0
        self.busy_ns = 0

    @property
    def has_room(self) -> bool:
        """Whether a slot is free and nobody waits for one here already."""
        return len(self.in_batch) < self.replica.slots and not self.replica.num_pending_requests

    @property
    def tokens_left(self) -> int:
        """What is left of the token budget of the next batch, beside those that are in it already."""
        decoding = len(self.in_batch) - len(self.prefilling)
        unfinished = [self.in_batch[request_id] for request_id in self.prefilling]
        chunks = sum(request.num_prefill_tokens - request.num_processed_tokens for request in unfinished)
        return self.replica.chunk_size - decoding - int(chunks)

    def forget(self, request: RoutedRequest) -> None:
        """The request left the batch."""
        del self.in_batch[request.id]
        self.prefilling.discard(request.id)


class Ledger:
    """Watches the replicas of one run. `chance`: one came to a boundary at which a request could join."""

    def __init__(self, controller: Controller, replicas: Sequence[Replica]) -> None:
        self.controller = controller
        self.accounts = [Account(replica) for replica in replicas]
        self.chance = False
        for replica in replicas:
            replica.watcher = self

    def scheduled(self, device: int, batch: Batch | None) -> None:
        """Who was thrown out, and who joined."""
        account = self.accounts[device]
        for request in account.thrown_out:
            self.tell(device)
            account.forget(request)
            self.controller.preempted(request.id)
        account.thrown_out.clear()
        if batch is None:
            return
        account.running = True
        for request in batch.requests:
            if request.id not in account.in_batch:
                self.tell(device)
                account.in_batch[request.id] = request
                request.on_restart = account.thrown_out.append
                if not request.is_prefill_complete:
                    account.prefilling.add(request.id)
                self.controller.started(request.id, prefilled=request.is_prefill_complete)

    def ended(self, device: int, batch: Batch) -> None:
        """One iteration passed: who is done, and whose prompt is processed."""
        account = self.accounts[device]
        chance = account.has_room or bool(account.prefilling)
        account.running = False
        account.iterations += 1
        account.busy_ns += nanoseconds(batch.completed_at) - nanoseconds(batch.scheduled_at)
        now_s = nanoseconds(batch.completed_at) / NS_PER_S
        for request in batch.requests:
            if request.completed:
                self.tell(device)
                account.forget(request)
                self.controller.finished(now_s, request.id, request.output_tokens)
                chance = True
            elif request.id in account.prefilling and request.is_prefill_complete:
                self.tell(device)
                account.prefilling.discard(request.id)
                self.controller.prefilled(request.id, 1)
        self.chance |= chance

    def tell(self, device: int) -> None:
        """Let the controller know of the iterations of this replica so far."""
        account = self.accounts[device]
        if account.iterations:
            self.controller.advanced(device, account.iterations, account.busy_ns / NS_PER_S)
            account.iterations = account.busy_ns = 0

    def tell_all(self) -> None:
        """Let the controller know of the iterations of all replicas so far."""
        for device in range(len(self.accounts)):
            self.tell(device)

    def ready(self) -> list[int]:
        """The devices that stand at a boundary, and whose next batch a request could join."""
        return [device for device, account in enumerate(self.accounts) if self._is_ready(account)]

    def _is_ready(self, account: Account) -> bool:
        return not account.running and account.has_room and account.tokens_left > 0
