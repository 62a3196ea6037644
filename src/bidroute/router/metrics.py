"""The router's own Prometheus metrics.

One method per event, called where it happens; gauges are set from a `RouterState` when the page is asked for. Labels
are worker names, and words from fixed sets: never a model, tenant or anything else that a client can choose.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from bidroute.router.state import RouterState, WorkerState
from bidroute.router.tallies import CounterTally, GaugeTally, HistogramTally
from bidroute.router.tickets import Failure
from bidroute.router.workers import PREFILL

_WAIT_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TTFT_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
_TPOT_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1)
_E2E_S = (0.1, 0.25, 0.5, 1, 2, 4, 8, 12, 18, 27, 40, 60, 120, 300, 900)
_RATIO = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2, 3, 5, 10)
_DECISION_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
_BREAKER = {"closed": 0, "half-open": 1, "open": 2}
_WORD_STATUS = ("joining", "ready", "draining", "down")

_Tally = TypeVar("_Tally", bound=Collector)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RouterMetrics:
    """All metrics of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies: list[Collector] = []
        self._gauges: list[GaugeTally] = []
        self._define_requests()
        self._define_decisions()
        self._define_workers()
        self._define_prefills()

    def _counter(self, name: str, text: str, *labels: str) -> CounterTally:
        return self._add(CounterTally(self.registry, f"bidroute_{name}", text, labels))

    def _gauge(self, name: str, text: str, *labels: str) -> GaugeTally:
        gauge = self._add(GaugeTally(self.registry, f"bidroute_{name}", text, labels))
        self._gauges.append(gauge)
        return gauge

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> HistogramTally:
        return self._add(HistogramTally(self.registry, f"bidroute_{name}", text, bounds))

    def _add(self, tally: _Tally) -> _Tally:
        self._tallies.append(tally)
        return tally

    def _define_requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        self._requests = counter("requests", "Requests that came in")
        self._ended = counter("requests_ended", "Requests that ended, by outcome and HTTP status", "outcome", "status")
        self._refused = counter("refused", "Requests refused, by reason", "reason")
        self._retries = counter("retries", "Attempts on another worker, by why the one before failed", "failure")
        self._output_tokens = counter("output_tokens", "Output tokens of finished requests")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests")
        self._ttft = histogram("ttft_seconds", "From arrival to the first output token", _TTFT_S)
        self._tpot = histogram("tpot_seconds", "Time per output token after the first", _TPOT_S)
        self._e2e = histogram("e2e_seconds", "From arrival to the end of the answer", _E2E_S)
        self._output_ratio = histogram(
            "output_tokens_true_per_predicted", "True over predicted output tokens; 1 is a good prediction", _RATIO
        )
        self._prompt_ratio = histogram(
            "prompt_tokens_true_per_estimated", "True over estimated prompt tokens; 1 is a good estimate", _RATIO
        )

    def _define_decisions(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self._queue_length = gauge("queue_length", "Requests that wait in the router")
        self._oldest_wait = gauge("queue_oldest_wait_seconds", "How long the oldest of them has waited")
        self._queue_held = gauge("queue_held", "Requests held at the last decision, by reason", "reason")
        self._wait = histogram("wait_seconds", "Time in the router's queue until the release", _WAIT_S)
        self._decisions = counter("decisions", "Decisions taken")
        self._held = counter("held", "Requests held, counted at every decision, by reason", "reason")
        self._decision = histogram("decision_seconds", "Time of one decision", _DECISION_S)
        self._price_update = histogram("price_update_seconds", "Time of one price update, off the loop", _DECISION_S)
        self._objective = gauge("objective", "The objective's numbers in force, by term", "term")
        self._policy = gauge("policy_info", "1 for the policy in force", "policy")

    def _define_workers(self) -> None:
        counter, gauge = self._counter, self._gauge
        self._released = counter("released", "Requests released, by worker", "worker")
        self._failures = counter("failures", "Failed attempts, by worker and kind", "worker", "failure")
        self._preemptions = counter("preemptions", "Preemptions seen in a worker's counters", "worker")
        self._scrape_failures = counter("scrape_failures", "Readings of a worker that failed", "worker")
        self._leases = gauge("leases", "Open leases", "worker")
        self._slots_used = gauge("slots_used", "Batch slots in use, by the ledger", "worker")
        self._slots_total = gauge("slots_total", "Batch slots believed", "worker")
        self._kv_used = gauge("kv_tokens_used", "KV tokens in use, by the ledger", "worker")
        self._kv_total = gauge("kv_tokens_total", "KV tokens believed", "worker")
        self._period = gauge("period_seconds", "Time of one decode iteration", "worker")
        self._engine_waiting = gauge("engine_waiting", "The engine's own queue at the last reading", "worker")
        self._breaker = gauge("breaker_state", "0 closed, 1 half-open, 2 open", "worker")
        self._status = gauge("worker_status", "1 for the status that a worker has", "worker", "status")
        price = "Price over one period in reward units, by resource (slot: one; kv: 1000 tokens)"
        self._price_now = gauge("price_now", f"{price}, in the first bucket", "worker", "resource")
        self._price_ahead = gauge("price_ahead", f"{price}, mean over the buckets", "worker", "resource")

    def _define_prefills(self) -> None:
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self._role = gauge("worker_role", "1 for the role that a worker has", "worker", "role")
        self._for_prefill = gauge("prefill_queue_length", "Requests that wait for a prefill worker")
        self._prefilled_waiting = gauge("prefilled_waiting", "Requests that wait for a decode worker, their KV ready")
        self._prefill_tokens = gauge("prefill_tokens", "Prompt tokens that a prefill worker has to process", "worker")
        self._prefill_speed = gauge("prefill_tokens_per_second", "Speed of a prefill worker while busy", "worker")
        self._prefills = counter("prefills", "Prompts processed, by prefill worker", "worker")
        self._again = counter("prefilled_again", "Prompts processed once more, by why their KV was of no use", "reason")
        self._prefill_wait = histogram("prefill_wait_seconds", "From arrival to a prefill worker", _WAIT_S)
        self._prefill = histogram("prefill_seconds", "Time at the prefill worker", _TTFT_S)
        self._hand_over = histogram("hand_over_wait_seconds", "From the prefill's end to the decode worker", _WAIT_S)

    # --- events -------------------------------------------------------------------------------------------------

    def arrived(self) -> None:
        """A request came in."""
        self._requests.add()

    def refused(self, code: str) -> None:
        """A request was refused; `code` is RefusedError's word."""
        self._refused.add(code)

    def ended(self, outcome: str, status: int) -> None:
        """A request ended: `finished`, `cancelled`, `failed` or `refused`, with this HTTP status (0: none sent)."""
        self._ended.add(outcome, str(status))

    def decided(self, duration_s: float, held: Mapping[str, int]) -> None:
        """A decision was taken, in `duration_s`, and held this many requests for these reasons."""
        self._decisions.add()
        self._decision.observe(duration_s)
        for reason, count in held.items():
            self._held.add(str(reason), amount=count)

    def prices_updated(self, duration_s: float) -> None:
        """A price update ran."""
        self._price_update.observe(duration_s)

    def released(self, worker: str, wait_s: float) -> None:
        """A request was released to this worker after waiting so long."""
        self._released.add(worker)
        self._wait.observe(wait_s)

    def started(self, ttft_s: float) -> None:
        """The first output of a request came, so long after its arrival."""
        self._ttft.observe(ttft_s)

    def finished(
        self, e2e_s: float, ttft_s: float, prompt_tokens: int, output_tokens: int, each_tokens: float | None = None
    ) -> None:
        """A request ended by itself, with these times from its arrival and these true lengths.

        `each_tokens`: the output of each of its choices, where there are several.
        """
        self._e2e.observe(e2e_s)
        each_tokens = output_tokens if each_tokens is None else each_tokens
        if each_tokens > 1 and math.isfinite(ttft_s):
            self._tpot.observe(max(0.0, e2e_s - ttft_s) / (each_tokens - 1))
        self._prompt_tokens.add(amount=prompt_tokens)
        self._output_tokens.add(amount=output_tokens)

    def output_predicted(self, predicted_tokens: float, true_tokens: int) -> None:
        """The true output length of a request whose expected length was this at its release."""
        if predicted_tokens > 0:
            self._output_ratio.observe(true_tokens / predicted_tokens)

    def prompt_estimated(self, estimated_tokens: float, true_tokens: int) -> None:
        """The true prompt length of a request whose length was estimated from its bytes."""
        if estimated_tokens > 0:
            self._prompt_ratio.observe(true_tokens / estimated_tokens)

    def failed(self, worker: str, failure: Failure) -> None:
        """An attempt on a worker failed."""
        self._failures.add(worker, failure.value)

    def retried(self, failure: Failure) -> None:
        """A request goes to another worker because of this failure."""
        self._retries.add(failure.value)

    def prefill_sent(self, wait_s: float) -> None:
        """A request went to a prefill worker, so long after its arrival."""
        self._prefill_wait.observe(wait_s)

    def prefilled(self, worker: str, duration_s: float) -> None:
        """A prefill worker processed a prompt."""
        self._prefills.add(worker)
        self._prefill.observe(duration_s)

    def handed_over(self, wait_s: float) -> None:
        """A prefilled request went to a decode worker, so long after its prefill."""
        self._hand_over.observe(wait_s)

    def prefilled_again(self, reason: str) -> None:
        """A prompt's KV was of no use: `lease` (it ran out), `failure` (of a decode worker), `worker out`."""
        self._again.add(reason)

    def preempted(self, worker: str, count: int) -> None:
        """So many more preemptions show in a worker's counters."""
        if count > 0:
            self._preemptions.add(worker, amount=count)

    def scrape_failed(self, worker: str) -> None:
        """A reading of a worker failed."""
        self._scrape_failures.add(worker)

    # --- gauges -------------------------------------------------------------------------------------------------

    def observe_state(self, state: RouterState) -> None:
        """Set every gauge; workers that are gone leave their gauges."""
        for stale in self._gauges:
            stale.clear()
        self._queue_length.set(state.queue.waiting)
        self._oldest_wait.set(state.queue.oldest_wait_s)
        for gauge, values in ((self._queue_held, state.queue.held), (self._objective, state.objective)):
            for label, value in values.items():
                gauge.set(value, label)
        self._policy.set(1, state.policy)
        self._for_prefill.set(state.queue.for_prefill)
        self._prefilled_waiting.set(state.queue.prefilled)
        for worker in state.workers:
            self._observe_worker(worker)

    def _observe_worker(self, worker: WorkerState) -> None:
        name = worker.name
        self._leases.set(worker.leases, name)
        self._slots_used.set(worker.slots_used, name)
        self._slots_total.set(worker.slots_total, name)
        self._kv_used.set(worker.kv_used, name)
        self._kv_total.set(worker.kv_total, name)
        self._period.set(worker.period_s, name)
        self._engine_waiting.set(worker.engine_waiting, name)
        self._breaker.set(_BREAKER.get(worker.breaker, math.nan), name)
        self._role.set(1, name, worker.role)
        if worker.role == PREFILL:
            self._prefill_tokens.set(worker.prefill_tokens, name)
            self._prefill_speed.set(worker.prefill_tokens_per_s, name)
        for status in _WORD_STATUS:
            self._status.set(status == worker.status, name, status)
        priced = ("slot", worker.slot_price), ("kv", worker.kv_price), ("token_budget", worker.token_price)
        for resource, prices in priced:
            if prices:
                self._price_now.set(prices[0], name, resource)
                self._price_ahead.set(sum(prices) / len(prices), name, resource)

    def render(self) -> bytes:
        """The page, in Prometheus' text format (`CONTENT_TYPE`)."""
        return b"".join(generate_latest(tally) for tally in self._tallies)

    async def render_in_steps(self) -> bytes:
        """The same page, made one family at a time with the event loop running in between: with a hundred workers
        the whole page takes tens of milliseconds, for which no token should wait."""
        parts = []
        for tally in self._tallies:
            parts.append(generate_latest(tally))
            await asyncio.sleep(0)
        return b"".join(parts)
