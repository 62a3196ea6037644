"""OpenTelemetry traces: a span for each request, and in it one for each wait and each attempt at a worker.

Off unless configured. Spans have ids, names of workers, times and counts, and nothing that was asked or answered.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bidroute.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span


class Trace:
    """The spans of one request, as the proxy sees them. This one does nothing."""

    def waits(self) -> None:
        """It is in the queue."""

    def sent(self, worker_name: str) -> Mapping[str, str]:
        """It goes to this worker; the headers that hand the trace on."""
        return {}

    def first_output(self) -> None:
        """The worker's first output is there."""

    def failed(self, failure: str, status: int) -> None:
        """The attempt failed: in which way, and the HTTP status that it stands for."""

    def ended(
        self, outcome: str, status: int, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """All is over; status 0: the client has left."""


class Tracing:
    """Begins traces. This one begins none."""

    def begin(self, headers: Mapping[str, str], path: str, request_id: str) -> Trace:
        """A request came in; it belongs to the trace that its `traceparent` names, if it has one."""
        return _NO_TRACE

    def close(self) -> None:
        """Send what has not been sent."""


_NO_TRACE = Trace()
NO_TRACING = Tracing()


class OpenTelemetryTracing(Tracing):
    """Traces through this provider of opentelemetry-sdk."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("bidroute")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, headers: Mapping[str, str], path: str, request_id: str) -> Trace:
        """See `Tracing`."""
        from opentelemetry.trace import SpanKind

        route = path.partition("?")[0]
        attributes = {"http.request.method": "POST", "http.route": route, "bidroute.request_id": request_id}
        span = self._tracer.start_span(f"POST {route}", self._propagator.extract(headers), SpanKind.SERVER, attributes)
        return _SpanTrace(self._tracer, self._propagator, span)

    def close(self) -> None:
        """See `Tracing`."""
        self._provider.shutdown()


class _SpanTrace(Trace):
    """`_child` is the span of the wait or the attempt that goes on now."""

    def __init__(self, tracer: Any, propagator: Any, span: Span) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._tracer = tracer
        self._propagator = propagator
        self._span = span
        self._context = set_span_in_context(span)
        self._in_context = set_span_in_context
        self._client = SpanKind.CLIENT
        self._child: Span | None = None
        self._attempts = 0

    def waits(self) -> None:
        self._next(self._tracer.start_span("wait", self._context))

    def sent(self, worker_name: str) -> Mapping[str, str]:
        self._attempts += 1
        attributes = {"bidroute.worker": worker_name, "bidroute.attempt": self._attempts}
        child = self._tracer.start_span("upstream", self._context, self._client, attributes)
        self._next(child)
        headers: dict[str, str] = {}
        self._propagator.inject(headers, self._in_context(child))
        return headers

    def first_output(self) -> None:
        if self._child is not None:
            self._child.add_event("first output")

    def failed(self, failure: str, status: int) -> None:
        if self._child is not None:
            self._child.set_attributes({"error.type": failure, "http.response.status_code": status})
            _mark(self._child, 500)
        self._next(None)

    def ended(
        self, outcome: str, status: int, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        self._next(None)
        known: dict[str, str | int | None] = {
            "bidroute.outcome": outcome,
            "bidroute.attempts": self._attempts,
            "http.response.status_code": status or None,
            "gen_ai.usage.input_tokens": prompt_tokens,
            "gen_ai.usage.output_tokens": output_tokens,
        }
        self._span.set_attributes({name: value for name, value in known.items() if value is not None})
        _mark(self._span, status)
        self._span.end()

    def _next(self, child: Span | None) -> None:
        if self._child is not None:
            self._child.end()
        self._child = child


def _mark(span: Span, status: int) -> None:
    from opentelemetry.trace import Status, StatusCode

    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def open_tracing(endpoint: str | None) -> Tracing:
    """Traces to this OTLP endpoint over HTTP, in batches and from a thread of their own; None: no traces.

    The variables of OpenTelemetry (headers, sampler, resource, service name) are heeded. Raises ConfigError where the
    extra is not installed.
    """
    if endpoint is None:
        return NO_TRACING
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError("traces need opentelemetry; run: pip install 'bidroute[otel]'") from None
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "bidroute")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OpenTelemetryTracing(provider)
