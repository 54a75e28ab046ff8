"""OpenTelemetry: one span for each request, from its arrival to the last byte of its answer.

The names of attributes are those of the semantic conventions for HTTP servers and for generative AI. What was said is
never among them. opentelemetry is imported when spans are asked for (the extra `otel`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.errors import InvalidParameterError
from pellucid.outputs import RequestMetrics
from pellucid.sampling_params import SamplingParams

PROVIDER = "pellucid"
OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/responses": "chat"}
_TRACES_PATH = "/v1/traces"
_PARAMS = ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed")


class Tracing:
    """Makes spans and hands them to an exporter in batches, in a thread of its own."""

    def __init__(self, exporter: Any, *, version: str = "unknown", is_immediate: bool = False) -> None:
        """exporter: of opentelemetry.sdk.trace.export; is_immediate: export each span when it ends (for tests)."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": PROVIDER, "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor((SimpleSpanProcessor if is_immediate else BatchSpanProcessor)(exporter))
        self._tracer = self._provider.get_tracer(PROVIDER, version)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to_endpoint(cls, endpoint: str, *, version: str = "unknown") -> Tracing:
        """Spans go to an OTLP collector over HTTP; `endpoint` is its base address, or that of its traces.

        Raises `InvalidParameterError` where the extra is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise InvalidParameterError(
                "otlp_endpoint", "otlp_endpoint needs OpenTelemetry: install it with `pip install 'pellucid[otel]'`"
            ) from None
        address = endpoint if endpoint.endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH
        return cls(OTLPSpanExporter(endpoint=address), version=version)

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        """A span for a request; the caller's `traceparent` makes it a child of the caller's."""
        from opentelemetry.trace import SpanKind

        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        return self._tracer.start_span(
            f"{method} {path}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": path},
        )

    def end(
        self,
        span: Any,
        route: str,
        notes: Mapping[str, Any],
        times: Sequence[RequestMetrics],
        params: SamplingParams | None,
    ) -> None:
        """Put what is known by now into the span, and end it. `notes` are those of the access log."""
        from opentelemetry.trace import Status, StatusCode

        operation = OPERATIONS.get(route)
        if operation is not None:
            model = notes.get("model")
            span.update_name(operation if model is None else f"{operation} {model}")
            span.set_attributes(_attributes(operation, notes, times, params))
        span.set_attributes({"http.route": route, "http.response.status_code": notes["status"]})
        reason = notes.get("error") or ("client_gone" if notes.get("client_gone") else None)
        if reason is not None:
            span.set_attribute("error.type", reason)
        if notes["status"] >= 500 or (reason is not None and notes["status"] < 400):
            span.set_status(Status(StatusCode.ERROR, reason))
        for name, moment in _events(times):
            span.add_event(name, timestamp=_wall_clock(moment))
        span.end()

    def close(self) -> None:
        """Send what is left; waits a few seconds at most."""
        self._provider.force_flush(3000)
        self._provider.shutdown()


def _attributes(
    operation: str, notes: Mapping[str, Any], times: Sequence[RequestMetrics], params: SamplingParams | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": notes.get("model"),
        "gen_ai.response.model": notes.get("model"),
        "gen_ai.response.id": notes.get("id"),
        "gen_ai.request.stream": notes.get("stream"),
        "gen_ai.usage.input_tokens": notes.get("prompt_tokens"),
        "gen_ai.usage.cache_read.input_tokens": notes.get("cached_tokens"),
        "gen_ai.usage.output_tokens": notes.get("completion_tokens"),
        "gen_ai.response.finish_reasons": notes.get("finish_reasons"),
    }
    if notes.get("trace") and notes.get("id"):
        # from a span to what the engine did: the trace of pellucid-trace/1 that this path gives
        found |= {"pellucid.trace.level": notes["trace"], "pellucid.trace.path": f"/v1/traces/{notes['id']}"}
    if params is not None:
        found |= {f"gen_ai.request.{name}": getattr(params, name) for name in _PARAMS}
        found["gen_ai.request.choice.count"] = params.n
        found["gen_ai.request.stop_sequences"] = list(params.stop) or None
    ttft = [t for one in times if (t := one.ttft) is not None]
    if ttft:
        found["gen_ai.response.time_to_first_chunk"] = min(ttft)
    return {name: value for name, value in found.items() if value is not None}


def _events(times: Sequence[RequestMetrics]) -> list[tuple[str, float]]:
    """When the prompt came into the queue, when it was first computed, when its first and its last token were there."""
    if not times:
        return []
    firsts = [min(given) for moments in _columns(times) if (given := [m for m in moments if m is not None])]
    last = [one.last_token_time for one in times if one.last_token_time is not None]
    return [*zip(("queue", "prefill", "decode"), firsts, strict=False), *((("done", max(last)),) if last else ())]


def _columns(times: Sequence[RequestMetrics]) -> list[list[float | None]]:
    return [
        [one.arrival_time for one in times],
        [one.first_scheduled_time for one in times],
        [one.first_token_time for one in times],
    ]


def _wall_clock(moment: float) -> int:
    """time.monotonic() → nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - moment) * 1e9)
