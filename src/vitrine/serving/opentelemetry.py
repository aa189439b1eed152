"""OpenTelemetry: one span per request, with children for decode, queue and model.

The context of the client comes from W3C's header `traceparent`. Sampling, resource attributes and headers of the
exporter follow OpenTelemetry's own environment variables.
"""

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from vitrine.runtime.optional import optional
from vitrine.serving.batching import Trace
from vitrine.version import __version__

SERVICE_NAME = "OTEL_SERVICE_NAME"
FIRST_SERVER_ERROR = 500


class Traces:
    """Begins a span per request; `close` sends the remaining spans."""

    def __init__(self, provider: Any) -> None:
        self.provider, self.api = provider, part("trace")
        self.tracer = provider.get_tracer("vitrine", __version__)
        self._context = part("trace.propagation.tracecontext").TraceContextTextMapPropagator()

    def begin(self, scope: MutableMapping[str, Any], *, route: str, identifier: str) -> "RequestTrace":
        """Begin the span of a request, below the client's where it sends one."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self.tracer.start_span(
            f"{scope['method']} {route}",
            context=self._context.extract(carrier),
            kind=self.api.SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                "http.route": route,
                "url.path": scope["path"][:200],
                "url.scheme": scope.get("scheme", "http"),
                "vitrine.request_id": identifier,
            },
        )
        return RequestTrace(self, span)

    def close(self) -> None:
        """Send the last spans."""
        self.provider.shutdown()


class RequestTrace(Trace):
    """The span of one request."""

    def __init__(self, traces: Traces, span: Any) -> None:
        self._traces, self._span = traces, span
        self.id: str = traces.api.format_trace_id(span.get_span_context().trace_id)

    def record(self, name: str, begin: int, end: int, attributes: Mapping[str, str | int]) -> None:
        """Record a stage as a child."""
        context = self._traces.api.set_span_in_context(self._span)
        child = self._traces.tracer.start_span(name, context=context, start_time=begin, attributes=attributes)
        child.end(end_time=end)

    def end(self, *, status: int) -> None:
        """End the span with the status of the response."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= FIRST_SERVER_ERROR:
            self._span.set_status(self._traces.api.StatusCode.ERROR)
        self._span.end()


def open_traces(address: str) -> Traces:
    """Send traces to a collector: OTLP over HTTP, such as http://127.0.0.1:4318."""
    named = {} if SERVICE_NAME in os.environ else {"service.name": "vitrine"}
    resource = part("sdk.resources").Resource.create({"service.version": __version__, **named})
    provider = part("sdk.trace").TracerProvider(resource=resource)
    exporter = part("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter(
        endpoint=f"{address.rstrip('/')}/v1/traces"
    )
    provider.add_span_processor(part("sdk.trace.export").BatchSpanProcessor(exporter))
    return Traces(provider)


def part(name: str) -> Any:
    """Return a module of OpenTelemetry, or raise an error with the command that installs it."""
    return optional(f"opentelemetry.{name}", extra="otel", purpose="sending traces")
