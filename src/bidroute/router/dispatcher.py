"""The dispatcher: the central queue, the decisions, and the ledger of what runs where, on a live fleet.

Everything here runs on one event loop, but for price updates, which run in a thread on a frozen copy of the state.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from bidroute.core.devices import Device
from bidroute.core.requests import Request
from bidroute.errors import ConfigError, NeverFitsError
from bidroute.lengths import build_predictor
from bidroute.policies import Controller, Policy, PolicySettings, build_policy
from bidroute.router.calibration import PromptTokens
from bidroute.router.decision_log import DecisionLog
from bidroute.router.metrics import RouterMetrics
from bidroute.router.settings import RouterSettings
from bidroute.router.tickets import Failure, Job, RefusedError, Ticket
from bidroute.router.workers import Worker

log = logging.getLogger("bidroute.router")

TICK_S = 0.02  # between decisions that nothing but time has prompted
UPDATE_S = 0.05  # between price updates
PROGRESS_TOKENS = 8  # a stream's progress enters the ledger in steps of so many tokens
FEW_WAITING = 64  # up to so many an arrival is decided on at once; among more, at the next tick


@dataclass(slots=True)
class Totals:
    """Counts since the start."""

    requests: int = 0
    released: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Dispatcher:
    """Takes jobs, releases each to a worker when the policy says so, and keeps the ledger true.

    Methods may only be called on the event loop, `start` first. `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        settings: RouterSettings,
        clock: Callable[[], float] = time.monotonic,
        metrics: RouterMetrics | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = metrics or RouterMetrics()
        self.log = DecisionLog(clock())
        self.held: dict[str, int] = {}
        self.totals = Totals()
        self.workers: dict[str, Worker] = {}
        self.tickets: dict[int, Ticket] = {}
        self.draining = False
        self.prompt_tokens = PromptTokens()
        self.policy: Policy = build_policy(settings.policy, PolicySettings(settings.seed, settings.objective))
        self._controller: Controller | None = None
        self._predictor = build_predictor(settings.lengths)
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Worker]] = {}
        self._by_device: dict[int, Worker] = {}
        self._apart: dict[int, Ticket] = {}  # waiting, but not in the policy's queue: for a retry, or for a fleet
        self._means_version = -1
        self._means: list[float] = []
        self._reported: dict[int, tuple[int, float]] = {}  # tokens and time of each stream's last progress
        self._prompted = False
        self._ticking: asyncio.TimerHandle | None = None
        self._update: asyncio.Future[None] | None = None
        self._updated_s = -math.inf
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="prices")
        self._loop: asyncio.AbstractEventLoop

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to decide, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._tick()

    def stop(self) -> None:
        """Refuse all that waits and decide no more; what runs is the caller's."""
        self.draining = True
        for ticket_id in list(self._waiting):
            self._refuse(ticket_id, RefusedError(503, "shutting_down", "the router is shutting down", 5.0))
        if self._ticking:
            self._ticking.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _tick(self) -> None:
        """Time alone changes what is best: decide again while somebody waits."""
        self._ticking = self._loop.call_later(TICK_S, self._tick)
        if self._waiting:
            self._fit_capacities()
            self._prompt()

    def _prompt(self) -> None:
        """Decide as soon as everything that has happened is known."""
        if not self._prompted:
            self._prompted = True
            self._loop.call_soon(self._decide)

    # --- workers ----------------------------------------------------------------------------------------------------

    def add_worker(self, worker: Worker) -> None:
        """A worker joins with the capacity it has; it ramps up. Raises ConfigError when its name is taken."""
        if worker.name in self.workers:
            raise ConfigError(f"worker {worker.name!r} is in the fleet already; choose another name")
        device = Device(worker.name, worker.batch_slots, worker.kv_tokens, worker.block_size)
        if self._controller is None:
            self._controller = Controller(self.policy, [device], self._predictor, learn_on_update=True)
            worker.device = 0
        else:
            worker.device = self._controller.device_joined(device)
        worker.joined_s = self.clock() if len(self.tickets) > len(self._waiting) else -math.inf
        self.workers[worker.name] = self._by_device[worker.device] = worker
        self._fit_capacities()
        self._readmit()
        self._prompt()

    def drain_worker(self, name: str) -> None:
        """It finishes what it has and takes nothing new."""
        worker = self.worker(name)
        worker.draining = True
        self._follow(worker)

    def rename_worker(self, worker: Worker, name: str) -> None:
        """Another worker is to have its name."""
        del self.workers[worker.name]
        worker.name = name
        self.workers[name] = worker

    def resize_worker(self, name: str, batch_slots: int, kv_tokens: int) -> None:
        """Its capacity is another."""
        worker = self.worker(name)
        worker.batch_slots, worker.kv_tokens = batch_slots, kv_tokens
        self._fit_capacities()
        self._set_apart_stranded()
        self._prompt()

    def remove_worker(self, name: str) -> list[Ticket]:
        """It is gone: its leases are closed and its tickets returned, for the proxy to retry or to end."""
        worker = self.workers.pop(self.worker(name).name)
        del self._by_device[worker.device]
        gone = [self.tickets[lease.request_id] for lease in self.controller.device_left(worker.device)]
        for ticket in gone:
            ticket.worker = None
        self._set_apart_stranded()
        return gone

    def worker(self, name: str) -> Worker:
        """The worker of this name. Raises ConfigError when there is none."""
        try:
            return self.workers[name]
        except KeyError:
            raise ConfigError(f"worker {name!r} is unknown; there are: {', '.join(self.workers) or 'none'}") from None

    def worker_alive(self, worker: Worker) -> None:
        """It answered a scrape: an open breaker may now be half open."""
        if worker.breaker.alive(self.clock()):
            log.info("worker %s answers again; trying one request", worker.name)
            self._follow(worker)

    def worker_dead(self, worker: Worker, detail: str) -> None:
        """It cannot be reached."""
        if worker.breaker.fault(self.clock(), certain=True):
            log.warning("worker %s is out: %s", worker.name, detail)
            self._follow(worker)

    def _follow(self, worker: Worker) -> None:
        """Bring the fleet in line with what the worker may be sent."""
        if worker.accepts():
            self.controller.device_resumed(worker.device)
            self._readmit()
        else:
            self.controller.device_draining(worker.device)
            self._set_apart_stranded()
        self._fit_capacities()
        self._prompt()

    def _fit_capacities(self) -> None:
        """Bring the fleet's capacities in line with what is believed of the workers now."""
        now_s, fleet = self.clock(), self.controller.state.fleet
        for worker in self.workers.values():
            slots, kv_tokens = worker.slots_believed(now_s), worker.kv_believed(now_s)
            if slots != fleet.batch_slots[worker.device] or kv_tokens != fleet.kv_tokens[worker.device]:
                self.controller.device_resized(worker.device, slots, kv_tokens)

    def set_policy(self, policy: Policy) -> None:
        """Go on under another policy; the queue and the leases stay."""
        self.policy = policy
        if self._controller is None:
            return
        self._controller.policy = policy
        queue = self._controller.state.queue
        for request_id, length_class in zip(queue.ids.tolist(), queue.length_class.tolist(), strict=True):
            request = queue.request(request_id)
            policy.request_arrived(request.arrival_s, request, length_class)
        self._prompt()

    @property
    def controller(self) -> Controller:
        """The controller; there is one as soon as there was a worker."""
        if self._controller is None:
            raise ConfigError("the fleet has no workers yet; add one")
        return self._controller

    def waiting(self) -> list[Ticket]:
        """Everybody who waits."""
        return [self.tickets[ticket_id] for ticket_id in self._waiting]

    def least_busy(self, model: str) -> Worker:
        """A worker for a request that has no price, such as an embedding. Raises RefusedError when there is none."""
        able = [worker for worker in self.workers.values() if worker.accepts() and worker.serves(model)]
        if not able:
            raise RefusedError(503, "no_worker", "no worker takes such requests now", 5.0)
        leases = self.controller.state.fleet.open_leases
        return min(able, key=lambda worker: leases[worker.device] / worker.batch_slots)

    # --- requests ---------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> Ticket:
        """A request arrived. Raises RefusedError when it cannot be taken."""
        self.metrics.arrived()
        self.totals.requests += 1
        try:
            return self._take(job)
        except RefusedError as error:
            self._note_refusal(error)
            raise

    def _note_refusal(self, error: RefusedError) -> None:
        self.totals.refused += 1
        self.metrics.refused(error.code)
        self.metrics.ended("refused", error.status)

    def _take(self, job: Job) -> Ticket:
        if self.draining:
            raise RefusedError(503, "shutting_down", "the router is shutting down", 5.0)
        if len(self._waiting) >= self.settings.max_waiting:
            raise RefusedError(429, "queue_full", f"{len(self._waiting)} requests wait already", self._drain_s())
        known = list(self.workers.values())
        if known and not any(worker.serves(job.model) for worker in known):
            raise RefusedError(404, "model_not_found", f"no worker serves the model {job.model!r}")
        tokens = job.prompt_tokens
        if tokens is None:
            tokens = self.prompt_tokens.estimate(job.model, job.prompt_bytes)
        ticket = Ticket(next(self._ids), job, self.clock(), tokens)
        self._enqueue(ticket)
        self.tickets[ticket.id] = ticket
        self._waiting[ticket.id] = self._loop.create_future()
        if len(self._waiting) <= FEW_WAITING:
            self._prompt()
        return ticket

    async def released(self, ticket: Ticket) -> Worker:
        """Wait until the policy releases it, and where to. Raises RefusedError when it has waited too long."""
        limit_s = min(ticket.job.deadline_s, self.settings.max_wait_s) - (self.clock() - ticket.arrival_s)
        timer = self._loop.call_later(max(limit_s, 0.0), self._expire, ticket.id)
        try:
            return await self._waiting[ticket.id]
        finally:
            timer.cancel()

    def _expire(self, ticket_id: int) -> None:
        if ticket_id in self._waiting:
            waited_s = self.clock() - self.tickets[ticket_id].arrival_s
            reason = f"no worker had room for it within {waited_s:.1f} s"
            self._refuse(ticket_id, RefusedError(503, "waited_too_long", reason, self._drain_s()))

    def started(self, ticket: Ticket) -> None:
        """Its first output came: the prompt is processed."""
        if ticket.worker is None or not math.isnan(ticket.started_s):
            return
        ticket.started_s, ticket.output_tokens = self.clock(), 1
        self._reported[ticket.id] = 1, ticket.started_s
        self.metrics.started(ticket.started_s - ticket.arrival_s)
        self.controller.prefilled(ticket.id, 1)

    def progressed(self, ticket: Ticket, tokens: int) -> None:
        """It has `tokens` of output so far."""
        ticket.output_tokens = tokens
        reported, since_s = self._reported.get(ticket.id, (tokens, 0.0))
        if tokens - reported >= PROGRESS_TOKENS and ticket.worker is not None:
            now_s = self.clock()
            self._reported[ticket.id] = tokens, now_s
            self.controller.progressed(ticket.id, tokens)
            self.controller.state.fleet.observe_pace(ticket.worker.device, tokens - reported, now_s - since_s)

    def finished(self, ticket: Ticket, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """It ended by itself, with this true usage where the worker said."""
        worker = self._end(ticket)
        if worker is None:
            return
        now_s, tokens = self.clock(), max(output_tokens or ticket.output_tokens, 1)
        lease = self.controller.finished(now_s, ticket.id, tokens)
        self._count_finished(ticket, now_s, prompt_tokens or lease.prompt_tokens, tokens, lease.length_class)
        if prompt_tokens is not None and ticket.job.prompt_tokens is None:
            self.prompt_tokens.observe(ticket.job.model, ticket.job.prompt_bytes, prompt_tokens)
            self.metrics.prompt_estimated(ticket.prompt_tokens, prompt_tokens)
        if worker.breaker.success():
            log.info("worker %s is back", worker.name)
            worker.joined_s = now_s
        self._prompt()

    def _count_finished(self, ticket: Ticket, now_s: float, prompt: int, output: int, length_class: int) -> None:
        self.totals.finished += 1
        self.totals.prompt_tokens += prompt
        self.totals.output_tokens += output
        self.metrics.ended("finished", 200)
        self.metrics.finished(now_s - ticket.arrival_s, ticket.started_s - ticket.arrival_s, prompt, output)
        self.metrics.output_predicted(self._mean_tokens(length_class), output)

    def _mean_tokens(self, length_class: int) -> float:
        """What a class was expected to be, as of the last update; the sum over its survival function is not cheap."""
        lengths = self.controller.state.lengths
        if self._means_version != lengths.version:
            self._means_version, self._means = lengths.version, lengths.survival.sum(axis=1).tolist()
        return self._means[length_class]

    def cancelled(self, ticket: Ticket) -> None:
        """The client left, or the proxy gave up; waiting or running."""
        if ticket.id in self._waiting:
            self._leave_queue(ticket).cancel()
        elif self._end(ticket) is not None:
            self.controller.cancelled(ticket.id)
        else:
            return
        self.totals.cancelled += 1
        self.metrics.ended("cancelled", 0)
        self._prompt()

    def failed(self, ticket: Ticket, failure: Failure, detail: str = "") -> None:
        """Its worker did not serve it: the lease is closed. `retry` may follow; else this is its end."""
        worker = self._end(ticket)
        if worker is None:
            return
        self.controller.cancelled(ticket.id)
        self.totals.failed += 1
        self.metrics.failed(worker.name, failure)
        now_s = self.clock()
        if failure is Failure.BACK_PRESSURE:
            worker.pressed(now_s, int(self.controller.state.fleet.open_leases[worker.device]))
            self._fit_capacities()
        elif failure is not Failure.CLIENT and worker.breaker.fault(now_s, certain=failure is Failure.STALLED):
            log.warning("worker %s is out: %s", worker.name, detail)
            self._follow(worker)
        self._prompt()

    def retry(self, ticket: Ticket) -> None:
        """Back into the queue, to go to another worker if there is one; `released` is to be awaited again."""
        self.totals.retries += 1
        ticket.id = next(self._ids)
        ticket.worker, ticket.started_s, ticket.output_tokens = None, math.nan, 0
        self.tickets[ticket.id] = self._apart[ticket.id] = ticket
        self._waiting[ticket.id] = self._loop.create_future()
        self._prompt()

    def _end(self, ticket: Ticket) -> Worker | None:
        """Forget the ticket; its worker, or None when its lease was closed already."""
        self.tickets.pop(ticket.id, None)
        self._reported.pop(ticket.id, None)
        worker, ticket.worker = ticket.worker, None
        return worker

    def _leave_queue(self, ticket: Ticket) -> asyncio.Future[Worker]:
        """Take it out of the queue; what waits for its release is returned, to be told why."""
        future = self._waiting.pop(ticket.id)
        self.tickets.pop(ticket.id, None)
        if self._apart.pop(ticket.id, None) is None:
            self.controller.cancelled(ticket.id)
        return future

    def _refuse(self, ticket_id: int, error: RefusedError) -> None:
        future = self._leave_queue(self.tickets[ticket_id])
        self._note_refusal(error)
        if not future.done():
            future.set_exception(error)

    # --- the queue --------------------------------------------------------------------------------------------------

    def _enqueue(self, ticket: Ticket) -> None:
        """Into the policy's queue; apart from it while no worker takes requests."""
        fleet = self._controller.state.fleet if self._controller else None
        if self._controller is None or fleet is None or not len(fleet.active):
            self._apart[ticket.id] = ticket
            return
        job, largest = ticket.job, fleet.largest_kv_tokens
        if job.prompt_tokens is None:  # an estimate refuses nobody: the worker knows better
            ticket.prompt_tokens = min(ticket.prompt_tokens, largest - 1)
        request = Request(
            ticket.id,
            ticket.arrival_s,
            ticket.prompt_tokens,
            job.max_tokens,
            None,
            job.priority,
            job.tenant,
            job.ttft_slo_s,
            job.e2e_slo_s,
        )
        try:
            self._controller.enqueue(self.clock(), request)
        except NeverFitsError as problem:
            raise RefusedError(400, "never_fits", str(problem)) from None

    def _readmit(self) -> None:
        """Whoever waits apart for want of a worker joins the queue."""
        for ticket in list(self._apart.values()):
            if ticket.attempts:
                continue
            del self._apart[ticket.id]
            try:
                self._enqueue(ticket)
            except RefusedError as error:
                self._apart[ticket.id] = ticket
                self._refuse(ticket.id, error)

    def _set_apart_stranded(self) -> None:
        """Whoever fits no worker that is left waits apart until one comes, or its time is up."""
        for ticket_id in self.controller.stranded():
            self.controller.cancelled(ticket_id)
            self._apart[ticket_id] = self.tickets[ticket_id]

    def _drain_s(self) -> float:
        """Roughly when there will be room: what waits, at the rate at which requests end."""
        if self._controller is None:
            return 5.0
        fleet = self._controller.state.fleet
        slots, period_s = max(int(fleet.batch_slots[fleet.active].sum()), 1), fleet.pace_s()[1]
        mean_tokens = self._mean_tokens(0)
        return min(max(math.ceil(len(self._waiting) * mean_tokens * period_s / slots), 1.0), 60.0)

    # --- decisions --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._prompted = False
        if self._controller is None or not self._waiting:
            return
        now_s, fleet = self.clock(), self._controller.state.fleet
        self._send_again()
        self._update_prices(now_s)
        if self._controller.dispatches_on_arrival:
            ready = fleet.accepting()
        else:
            ready = [g for g in fleet.accepting() if fleet.open_leases[g] < fleet.batch_slots[g]]
        if not ready or not len(self._controller.state.queue):
            return
        explained = self.log.explain(now_s, self._controller, ready)
        before_s = time.perf_counter()
        decision = self._controller.decide(now_s, ready)
        self.held = {str(reason): count for reason, count in decision.held.items()}
        self.metrics.decided(time.perf_counter() - before_s, self.held)
        names = {device: worker.name for device, worker in self._by_device.items()}
        self.log.decided(now_s, decision, explained, self.tickets, names)
        for assignment in decision.assignments:
            self._send(self.tickets[assignment.request_id], self._by_device[assignment.device])

    def _send(self, ticket: Ticket, worker: Worker) -> None:
        """The lease is open: tell whoever waits for it."""
        self.controller.started(ticket.id, prefilled=False)
        ticket.worker, ticket.released_s = worker, self.clock()
        ticket.attempts.append(worker.name)
        self.totals.released += 1
        self.metrics.released(worker.name, ticket.released_s - ticket.arrival_s)
        future = self._waiting.pop(ticket.id)
        if future.done():  # the client has just left
            self._end(ticket)
            self.controller.cancelled(ticket.id)
        else:
            future.set_result(worker)

    def _send_again(self) -> None:
        """Retries go first, each to the least busy worker not tried yet, or to a tried one if there is no other."""
        fleet = self.controller.state.fleet
        for ticket in list(self._apart.values()):
            able = [w for w in self.workers.values() if w.accepts() and w.kv_tokens > ticket.prompt_tokens]
            fresh = [worker for worker in able if worker.name not in ticket.attempts] or able
            free = [w for w in fresh if self._room(w, ticket.prompt_tokens)]
            if not ticket.attempts or not free:
                continue
            worker = min(free, key=lambda w: fleet.open_leases[w.device] / fleet.batch_slots[w.device])
            del self._apart[ticket.id]
            request = Request(ticket.id, ticket.arrival_s, ticket.prompt_tokens, ticket.job.max_tokens)
            fleet.open(request, worker.device, self._predictor.predict(request).length_class)
            self._send(ticket, worker)

    def _room(self, worker: Worker, prompt_tokens: int) -> bool:
        """Whether a slot is free, and KV for the prompt with a tenth to spare."""
        fleet, g = self.controller.state.fleet, worker.device
        used = int(fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g])
        return bool(
            fleet.open_leases[g] < fleet.batch_slots[g] and used + prompt_tokens + 1 <= 0.9 * fleet.kv_tokens[g]
        )

    # --- prices -----------------------------------------------------------------------------------------------------

    def _update_prices(self, now_s: float) -> None:
        """Bring prices and lengths up to date in a thread, on a copy of the state; one at a time."""
        if self._update is not None and not self._update.done():
            return
        if now_s - self._updated_s < UPDATE_S:
            return
        self._updated_s = now_s
        if not self.settings.updates_off_loop:
            self.controller.update(now_s)
            return
        frozen = self.controller.state.frozen()
        self._update = self._loop.run_in_executor(self._threads, self.controller.update, now_s, frozen)
        self._update.add_done_callback(partial(self._updated, time.perf_counter()))

    def _updated(self, began_s: float, update: asyncio.Future[None]) -> None:
        if update.cancelled():
            return
        if update.exception() is not None:
            log.error("price update failed: %r", update.exception())
        self.metrics.prices_updated(time.perf_counter() - began_s)
