"""Spans of OpenTelemetry, made of stages of changes.

This is imported only where tracing is on. Whatever process makes a span of a change derives the same ids from the
change's request id: that of the trace, and those of two spans that others hang from, the client's request and the
admin service's change. The rest have ids by chance. So a sidecar needs to know of no other process to put its spans
below the change that they are of.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from registry.runtime.program import release_version
from registry.runtime.tracing import TracedStage

REQUEST, CHANGE = "request", "change"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# A program that ends waits no longer for a collector that does not answer.
_CLOSE_SECONDS = 3
_KINDS = {REQUEST: SpanKind.CLIENT, CHANGE: SpanKind.SERVER}


def trace_id_of(request_id: str) -> int:
    """The trace of a change."""
    return _derived("trace", request_id, 16)


def span_id_of(name: str, request_id: str) -> int:
    """The span of a change's request, or of the change itself."""
    return _derived(name, request_id, 8)


def _derived(what: str, request_id: str, size_bytes: int) -> int:
    digest = hashlib.sha256(f"loraplane {what}\0{request_id}".encode()).digest()
    return int.from_bytes(digest[:size_bytes], "big")


class DerivedIds(IdGenerator):
    """Ids of the span that is being made. `lock` is held meanwhile."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._chance = random.SystemRandom()
        self._trace_id = self._span_id = 0

    @contextmanager
    def of(self, trace_id: int, span_id: int) -> Iterator[None]:
        """The next span is of this trace, and has this id; 0: any."""
        with self.lock:
            self._trace_id, self._span_id = trace_id, span_id
            yield

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id or self._chance.getrandbits(64)


class SpanMaker:
    """Makes spans of stages, and has a processor export them."""

    def __init__(self, program: str, processor: SpanProcessor, attributes: Mapping[str, str]) -> None:
        """`attributes` are of the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say more of it."""
        usual = {"service.name": program, "service.version": release_version()}
        told = {f"loraplane.{name}": value for name, value in attributes.items()}
        resource = Resource(usual | told).merge(Resource.create())
        if resource.attributes.get("service.name", "").startswith("unknown_service"):  # type: ignore[union-attr]
            resource = resource.merge(Resource({"service.name": program}))
        self._ids = DerivedIds()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("loraplane", release_version())

    def take(self, stage: TracedStage) -> None:
        """See `StageSink`."""
        parent, link = self._parent(stage)
        attributes = {f"loraplane.{name}": value for name, value in stage.attributes.items()}
        attributes["loraplane.request_id"] = stage.request_id
        own = 0 if stage.failed or stage.name not in _KINDS else span_id_of(stage.name, stage.request_id)
        with self._ids.of(trace_id_of(stage.request_id), own):
            span = self._tracer.start_span(
                f"loraplane {stage.name}",
                context=Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context()),
                kind=_KINDS.get(stage.name, SpanKind.INTERNAL),
                attributes=attributes,
                links=() if link is None else (Link(link),),
                start_time=stage.begin_ns,
            )
        if stage.failed:
            span.set_status(Status(StatusCode.ERROR, stage.failed))
        span.end(stage.end_ns)

    def header(self, request_id: str) -> str:
        """See `StageSink`."""
        return f"00-{trace_id_of(request_id):032x}-{span_id_of(REQUEST, request_id):016x}-01"

    def close(self) -> None:
        """See `StageSink`."""
        self._provider.force_flush(_CLOSE_SECONDS * 1000)
        self._provider.shutdown()

    def _parent(self, stage: TracedStage) -> tuple[SpanContext | None, SpanContext | None]:
        """The span that a stage hangs from, and one of another trace that it is linked to."""
        trace_id = trace_id_of(stage.request_id)
        if stage.name not in _KINDS:
            return SpanContext(trace_id, span_id_of(CHANGE, stage.request_id), True, _SAMPLED), None  # noqa: FBT003 - their form
        caller = _context_of(stage.caller)
        if caller is not None and caller.trace_id == trace_id:
            return caller, None
        return None, caller


def _context_of(traceparent: str) -> SpanContext | None:
    """The span that a caller names; None: none, or not as W3C writes it."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    known = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16)))
    return known if known.is_valid else None


def exported(program: str, environment: Mapping[str, str], attributes: Mapping[str, str]) -> SpanMaker:
    """Spans that go in batches, by a thread, to where OpenTelemetry's variables say."""
    timeout = None if environment.get("OTEL_EXPORTER_OTLP_TIMEOUT") else _CLOSE_SECONDS
    return SpanMaker(program, BatchSpanProcessor(OTLPSpanExporter(timeout=timeout)), attributes)
