"""The router's fleet while it runs: workers are found out about, watched, and changed by an operator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import asdict
from functools import partial
from typing import Any

import aiohttp
import msgspec
import numpy as np

from bidroute import __version__
from bidroute.core.leases import LeaseState
from bidroute.core.objective import PRESETS, parse_objective
from bidroute.errors import ConfigError
from bidroute.policies import PolicySettings, build_policy, policy_names
from bidroute.policies.bid_price import BidPrice
from bidroute.router.discovery import Capacity, SlotEstimate, UnreachableError, discover
from bidroute.router.dispatcher import Dispatcher
from bidroute.router.explanations import explained
from bidroute.router.fleet_admin import NoSuchError, worker_name
from bidroute.router.membership import Membership
from bidroute.router.others import Others, Ours
from bidroute.router.prefill_pool import LeaseStage
from bidroute.router.prefill_stage import PrefillStage
from bidroute.router.progress import Progress, signs_of_life
from bidroute.router.readings import Reading, progress_between
from bidroute.router.scraper import UNREACHABLE, Scraper, ScraperSettings, open_session
from bidroute.router.settings import RouterSettings, WorkerSettings, checked
from bidroute.router.state import (
    QueueState,
    RequestExplanation,
    RouterState,
    WorkerState,
    count_waits,
)
from bidroute.router.worker_states import decode_worker_state, prefill_worker_state
from bidroute.router.workers import BOTH, DECODE, PREFILL, Worker

log = logging.getLogger("bidroute.router")

FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 10.0  # between attempts to reach a worker that has not answered yet
DEFAULT_KV_PER_SLOT = 2_048  # tokens, where a worker does not tell its KV
PACE_TOKENS = 8  # a reading of the token gap counts as so many iterations
GONE_POLL_S = 0.1  # between looks at whether a worker to be removed has finished


class LiveFleet:
    """Workers come, are watched, and go; the admin API and the watched file act through here (`FleetAdmin`).

    `start` first, on the running loop. A worker joins as soon as it answers; until then it is asked again.
    """

    def __init__(self, settings: RouterSettings, dispatcher: Dispatcher) -> None:
        self.settings = settings
        self.dispatcher = dispatcher
        self._joining: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._readings: dict[str, tuple[Reading, float]] = {}
        self._others: dict[str, Others] = {}
        self._estimates: dict[str, SlotEstimate] = {}
        self._progress: dict[str, Progress] = {}
        self._objective = parse_objective(settings.objective)
        self._objective_text = settings.objective
        self._policy_name = settings.policy
        self._started_s = dispatcher.clock()

    async def start(self) -> None:
        """Begin to look for the workers of the settings."""
        self._session: aiohttp.ClientSession = open_session(authorities=self.settings.http.worker_ca)
        rate = ScraperSettings(rate_hz=1.0 / self.settings.scrape_s)
        self._scraper = Scraper(self._session, self.on_reading, self.on_failure, rate)
        for worker in self.settings.workers:
            self._join(worker)
        for worker in self.settings.prefill:
            self._join(msgspec.structs.replace(worker, role=PREFILL))

    async def stop(self) -> None:
        """Look no more."""
        for task in [*self._joining.values(), *self._tasks]:
            task.cancel()
        await asyncio.gather(*self._joining.values(), *self._tasks, return_exceptions=True)
        await self._scraper.close()
        await self._session.close()

    # --- joining --------------------------------------------------------------------------------------------------

    def _join(self, settings: WorkerSettings) -> None:
        if settings.role == PREFILL:
            self.dispatcher.prefill.pool.expected.add(settings.name)
        self._joining[settings.name] = asyncio.create_task(self._until_joined(settings))

    async def _until_joined(self, settings: WorkerSettings) -> None:
        headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        worker, pause_s = Worker(settings.name, settings.url, headers, role=settings.role), FIRST_RETRY_S
        keeper = self._keeper(worker)
        while True:
            try:
                capacity = await discover(self._session, worker)
                self._equip(worker, settings, capacity)
                await self._see_what_runs(worker)
                if capacity.tokens_per_byte is not None:
                    self.dispatcher.estimates.told(worker.models, capacity.tokens_per_byte)
                keeper.add_worker(worker)
                break
            except UnreachableError as problem:
                if pause_s == FIRST_RETRY_S:
                    log.warning("%s", problem)
            except Exception:  # what it says of itself makes no sense; it may say something else later
                log.exception("worker %s cannot join", worker.name)
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, LONGEST_RETRY_S)
        if settings.drain:
            keeper.drain_worker(worker.name)
        del self._joining[settings.name]
        self._scraper.watch(worker)
        log.info(
            "worker %s: %d slots, %d KV tokens in blocks of %d",
            worker.name,
            worker.batch_slots,
            worker.kv_tokens,
            worker.block_size,
        )

    def _equip(self, worker: Worker, settings: WorkerSettings, capacity: Capacity) -> None:
        worker.kind, worker.models = capacity.kind, capacity.models
        slots = settings.batch_slots or capacity.batch_slots
        if slots is None:
            estimate = self._estimates[worker.name] = SlotEstimate()
            slots = estimate.slots
            log.warning(
                "worker %s does not tell its batch slots; believing %d until it is seen full", worker.name, slots
            )
        kv_tokens = settings.kv_tokens or capacity.kv_tokens
        if kv_tokens is None:
            kv_tokens = DEFAULT_KV_PER_SLOT * slots
            log.warning("worker %s does not tell its KV; believing %d tokens; set kv_tokens", worker.name, kv_tokens)
        worker.batch_slots, worker.kv_tokens = slots, kv_tokens
        worker.block_size = min(settings.block_size or capacity.block_size or 1, kv_tokens)
        worker.token_budget = settings.token_budget or 0

    async def _see_what_runs(self, worker: Worker) -> None:
        """What runs there already is not ours, after a restart of the router too: do not overfill the worker."""
        try:
            reading = await self._scraper.read(worker)
        except Exception as problem:  # whatever it is, the scraper will meet it again and say so
            log.debug("worker %s: no first reading: %r", worker.name, problem)
            return
        self._others[worker.name] = Others()
        self._others[worker.name].first(worker, reading)
        if reading.prompt_tokens_total is not None:
            self.dispatcher.estimates.counted(worker, reading.prompt_tokens_total)

    # --- watching ---------------------------------------------------------------------------------------------------

    def on_reading(self, worker: Worker, reading: Reading, now_s: float) -> None:
        """A worker's metrics were read: correct what is believed of it."""
        if self._in_service(worker.name) is not worker:
            return
        before = self._readings.get(worker.name)
        self._readings[worker.name] = reading, now_s
        worker.engine_waiting = reading.waiting or 0
        keeper = self._keeper(worker)
        if not self._hangs(worker, reading, now_s):
            keeper.worker_alive(worker)
        if before is not None:
            self._follow_progress(worker, before[0], reading, now_s - before[1])
        self._others.setdefault(worker.name, Others()).seen(worker, reading, self._ours(worker))
        if reading.prompt_tokens_total is not None:
            self.dispatcher.estimates.counted(worker, reading.prompt_tokens_total)
        estimate = self._estimates.get(worker.name)
        if estimate is not None and estimate.observe(reading) != worker.batch_slots:
            log.info("worker %s: %d slots, as seen", worker.name, estimate.slots)
            keeper.resize_worker(worker.name, estimate.slots, worker.kv_tokens)

    def on_failure(self, worker: Worker, reason: str) -> None:
        """A reading failed. A slow page is not death: only a worker that cannot be reached is taken out."""
        self.dispatcher.metrics.scrape_failed(worker.name)
        if self._in_service(worker.name) is not worker:
            return
        if reason.startswith(UNREACHABLE):
            self._keeper(worker).worker_dead(worker, reason)
        elif worker.name in self._readings:
            self._hangs(worker, None, asyncio.get_running_loop().time())

    def _hangs(self, worker: Worker, reading: Reading | None, now_s: float) -> bool:
        """Whether its engine stands still, as far as its counters and streams show; None: a reading has failed."""
        if worker.role == PREFILL:  # it has no place in the ledger; its silence is the proxy's to notice
            return False
        progress = self._progress.setdefault(worker.name, Progress(self.settings.hang_timeout_s))
        ledger = self.dispatcher.controller.state.fleet.ledgers[worker.device]
        counters = signs_of_life(reading or self._readings[worker.name][0])
        has_work = reading is None or bool(reading.running or reading.waiting)
        signs = None if counters is None else (*counters, worker.events_heard)
        silent_s = progress.seen(now_s, signs, ledger.n > 0 and has_work)
        if progress.hangs(silent_s, 0):
            prompts = ledger.prompt_tokens[ledger.state == LeaseState.PREFILLING]
            if progress.hangs(silent_s, int(prompts.max(initial=0))):
                progress.given_up(now_s)
                self.dispatcher.members.worker_hangs(
                    worker, silent_s
                )  # again, if one was just being sent the time before
        return progress.waits

    def _follow_progress(self, worker: Worker, before: Reading, now: Reading, duration_s: float) -> None:
        progress = progress_between(before, now, duration_s)
        if progress is None:  # it was started anew
            self._readings.pop(worker.name)
            if worker.role == PREFILL:
                self.dispatcher.prefill.worker_restarted(worker)
            return
        worker.output_tokens_per_s = progress.output_tokens_per_s or 0.0
        if progress.preemptions:
            worker.preempted(self.dispatcher.clock(), progress.preemptions)
            self.dispatcher.metrics.preempted(worker.name, progress.preemptions)
        if progress.token_gap_s and worker.role != PREFILL:
            fleet = self.dispatcher.controller.state.fleet
            fleet.observe_pace(worker.device, PACE_TOKENS, PACE_TOKENS * progress.token_gap_s)

    def _ours(self, worker: Worker) -> Ours:
        """What it has of ours, by the ledger."""
        if worker.role == PREFILL:
            load = self.dispatcher.prefill.load(worker.name)
            sent = load.requests[LeaseStage.SENT]
            return Ours(sent, load.to_do_tokens + load.held_tokens, sent, load.to_do_tokens)
        fleet, g = self.dispatcher.controller.state.fleet, worker.device
        starting = int(np.count_nonzero(fleet.ledgers[g].state != LeaseState.DECODING))
        held_tokens = int(fleet.kv_tokens_used[g] + fleet.kv_tokens_pending[g])
        return Ours(int(fleet.open_leases[g]), held_tokens, starting, int(fleet.prefill_tokens[g]))

    # --- the operator's side (FleetAdmin) ---------------------------------------------------------------------------

    async def add_worker(self, settings: dict[str, Any]) -> str:
        """See `FleetAdmin`."""
        try:
            parsed = msgspec.convert(settings, WorkerSettings)
        except msgspec.ValidationError as problem:
            raise ConfigError(f"worker {worker_name(settings)}: {problem}".replace("`", "").replace("$.", "")) from None
        good = checked(RouterSettings(workers=[parsed]))
        (parsed,) = [*good.workers, *good.prefill]
        old = self._in_service(parsed.name)
        if parsed.name in self._joining or (old is not None and not old.draining):
            raise ConfigError(f"worker {parsed.name!r} is in the fleet already; choose another name")
        if old is not None:
            self._forget_readings(old)
            self._keeper(old).rename_worker(old, f"{old.name} (leaving {self.dispatcher.clock():.3f})")
            self._spawn(self._remove_when_idle(old))
        self._join(parsed)
        return parsed.name

    async def drain_worker(self, name: str) -> None:
        """See `FleetAdmin`."""
        self._keeper(self._known(name)).drain_worker(name)

    async def remove_worker(self, name: str, *, now: bool = False) -> None:
        """See `FleetAdmin`."""
        if name in self._joining:
            self._joining.pop(name).cancel()
            self.dispatcher.prefill.expected_no_more(name)
            return
        worker = self._known(name)
        self._keeper(worker).drain_worker(name)
        if now:
            self._forget(worker)
        else:
            self._spawn(self._remove_when_idle(worker))

    async def _remove_when_idle(self, worker: Worker) -> None:
        while self._in_service(worker.name) is worker and any(self._ours(worker)):
            await asyncio.sleep(GONE_POLL_S)
        if self._in_service(worker.name) is worker:
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self._keeper(worker).remove_worker(worker.name)
        self._scraper.forget(worker)
        self._forget_readings(worker)

    def _forget_readings(self, worker: Worker) -> None:
        self._readings.pop(worker.name, None)
        self._others.pop(worker.name, None)
        self._estimates.pop(worker.name, None)
        self._progress.pop(worker.name, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def resize_worker(self, name: str, batch_slots: int | None, kv_tokens: int | None) -> None:
        """See `FleetAdmin`."""
        worker = self._known(name)
        for what, value in (("batch_slots", batch_slots), ("kv_tokens", kv_tokens)):
            if value is not None and value < 1:
                raise ConfigError(f"worker {name}: {what}={value}; expected 1 or more")
        if batch_slots is not None:
            self._estimates.pop(name, None)
        self._keeper(worker).resize_worker(name, batch_slots or worker.batch_slots, kv_tokens or worker.kv_tokens)

    async def set_objective(self, text: str) -> None:
        """See `FleetAdmin`."""
        self._objective, self._objective_text = parse_objective(text), text
        for policy in self.dispatcher.roster.policies():
            if isinstance(policy, BidPrice):
                policy.objective = self._objective
        later = PolicySettings(self.settings.seed, text)
        self.dispatcher.roster.make_later(partial(build_policy, self._policy_name, later))

    async def set_policy(self, name: str) -> None:
        """See `FleetAdmin`."""
        settings = PolicySettings(self.settings.seed, self._objective_text)
        self.dispatcher.set_policy(partial(build_policy, name, settings))
        self._policy_name = name

    def _known(self, name: str) -> Worker:
        worker = self._in_service(name)
        if worker is None:
            there = ", ".join([*self.dispatcher.workers, *self.dispatcher.prefill.pool.loads]) or "none"
            raise NoSuchError(f"worker {name!r} is unknown; there are: {there}")
        return worker

    def _in_service(self, name: str) -> Worker | None:
        """The worker of this name, for whatever it is used."""
        load = self.dispatcher.prefill.pool.loads.get(name)
        return self.dispatcher.workers.get(name) if load is None else load.worker

    def _keeper(self, worker: Worker) -> Membership | PrefillStage:
        """Who is to be told of changes to it."""
        return self.dispatcher.prefill if worker.role == PREFILL else self.dispatcher.members

    # --- what it looks like now -------------------------------------------------------------------------------------

    def state(self) -> RouterState:
        """See `FleetAdmin`."""
        dispatcher, now_s = self.dispatcher, self.dispatcher.clock()
        prices = dispatcher.policy.prices()
        prefill = dispatcher.prefill.pool
        workers = [
            decode_worker_state(
                worker, dispatcher.controller.state.fleet, dispatcher.roster.prices_on(worker), self._role
            )
            for worker in dispatcher.workers.values()
        ]
        workers += [prefill_worker_state(load, now_s) for load in prefill.loads.values()]
        joining = [
            WorkerState(name, "", status="joining", role=PREFILL if name in prefill.expected else self._role)
            for name in self._joining
        ]
        return RouterState(
            uptime_s=now_s - self._started_s,
            policy=self._policy_name,
            objective=asdict(self._objective),
            workers=workers + joining,
            queue=self._queue_state(now_s),
            decisions=list(dispatcher.log.recent),
            totals=msgspec.structs.replace(
                dispatcher.totals,
                preemptions=sum(worker.preemptions for worker in dispatcher.workers.values()),
                output_tokens_per_s=sum(worker.output_tokens_per_s for worker in dispatcher.workers.values()),
            ),
            edges_periods=prices.edges_periods.tolist() if prices is not None else [],
            policies=policy_names(),
            presets=list(PRESETS),
            version=__version__,
        )

    def _queue_state(self, now_s: float) -> QueueState:
        dispatcher = self.dispatcher
        waits = np.array([now_s - ticket.arrival_s for ticket in dispatcher.waiting()])
        return QueueState(
            waiting=len(waits),
            limit=self.settings.max_waiting,
            oldest_wait_s=float(waits.max(initial=0.0)),
            waits=count_waits(waits),
            held=dispatcher.held if len(waits) else {},
            for_prefill=len(dispatcher.room.for_prefill),
            prefilled=dispatcher.prefill.waiting_prefilled(),
        )

    @property
    def _role(self) -> str:
        """Of workers that are not for prefill alone."""
        return DECODE if self.dispatcher.prefill.on else BOTH

    def explain(self, request_id: str) -> RequestExplanation:
        """See `FleetAdmin`."""
        return explained(self.dispatcher, request_id)
